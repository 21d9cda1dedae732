"""The pytest plugin, as the suite of somebody else's project uses it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch

import flroute

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

SUITE = """
    import torch

    def test_native():
        torch.ones(2, device="fl").add(1)

    def test_fallback():
        torch.erfinv(torch.zeros(2, 3, device="fl"))
"""


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """pytester forgets what the inner run imports; PyTorch imports parts of itself at the first op, and can only once."""
    torch.erfinv(torch.zeros(2, device="fl").add(1))


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Run pytest on a suite in this process, where ``erfinv`` has no kernel."""

    def run(suite: str, *options: str, **outcomes: int) -> pytest.RunResult:
        pytester.makepyfile(suite)
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
        if outcomes:
            result.assert_outcomes(**outcomes)
        return result

    return run


class TestUnasked:
    def test_nothing_happens(self, run: Run) -> None:
        result = run(SUITE, passed=2)
        result.stdout.no_fnmatch_line("*= flroute =*")

    def test_neither_flroute_nor_pytorch_is_imported(self, pytester: pytest.Pytester) -> None:
        pytester.makepyfile("import sys\ndef test_it(): assert not {'torch', 'flroute'} & set(sys.modules)")
        pytester.runpytest_subprocess().assert_outcomes(passed=1)


class TestError:
    def test_fails_a_test_that_fell_back(self, run: Run) -> None:
        result = run(SUITE, "--flroute-fallback=error", passed=1, failed=1)
        result.stdout.fnmatch_lines(
            [
                "*test_fallback: the host computed for the device:",
                "*aten::erfinv on fl:0, once: no_kernel: reference has no kernel for aten::erfinv*",
                "*with (float32 [[]2, 3]), first from *test_fails_a_test_that_fell_back.py:7*",
                '*Register a kernel for it*or allow it: allow=[[]"aten::erfinv"]*',
                "*= flroute =*",
                "2 tests, * of * computing calls native, 1 kind of fallback",
                "  aten::erfinv no_kernel in 1 test",
            ]
        )

    def test_keeps_a_test_s_own_failure(self, run: Run) -> None:
        suite = SUITE + "        assert 1 == 2, 'mine'\n"
        result = run(suite, "--flroute-fallback=error", passed=1, failed=1)
        result.stdout.fnmatch_lines(["*AssertionError: mine*"])

    def test_sees_fixtures_and_what_the_next_test_does_is_its_own(self, run: Run) -> None:
        suite = """
            import pytest, torch

            @pytest.fixture
            def prepared():
                return torch.erfinv(torch.zeros(2, device="fl"))

            def test_first(prepared): pass
            def test_second(): pass
        """
        result = run(suite, "--flroute-fallback=error", passed=1, failed=1)
        result.stdout.fnmatch_lines(["FAILED *test_first*"])

    def test_says_a_planted_fallback_s_kernel(self, pytester: pytest.Pytester) -> None:
        pytester.makeconftest(
            """
            import numpy, torch, flroute
            from flroute.vendor import Kernel, hookimpl

            def secretive(x):
                return torch.erf(torch.from_numpy(numpy.array(x))).numpy()

            class Plugin:
                @hookimpl
                def flroute_kernels(self, vendor):
                    return [Kernel("aten::erf", secretive)] if vendor == "reference" else []

            flroute.registry.register(Plugin(), "planted")
            """
        )
        pytester.makepyfile("import torch\ndef test_it(): torch.ones(2, device='fl').erf()")
        result = pytester.runpytest_subprocess("--flroute-fallback=error")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["*aten::erf on fl:0, once: in_kernel: by kernel reference/*secretive*"])


class TestMarker:
    def test_runs_a_test_on_a_device_and_fails_it(self, run: Run) -> None:
        suite = """
            import pytest, torch

            @pytest.mark.flroute(device="reference")
            def test_marked():
                assert torch.ones(2).device.type == "fl"
                torch.erfinv(torch.zeros(2))

            @pytest.mark.flroute(device="reference", allow=["aten::erfinv"])
            def test_allowed():
                torch.erfinv(torch.zeros(2))

            def test_unmarked():
                assert torch.ones(2).device.type == "cpu"
                torch.erfinv(torch.zeros(2, device="fl"))
        """
        result = run(suite, passed=2, failed=1)
        result.stdout.fnmatch_lines(["FAILED *test_marked*"])

    def test_names_a_device_that_does_not_exist(self, run: Run) -> None:
        suite = """
            import pytest
            @pytest.mark.flroute(device="acme")
            def test_it(): pass
        """
        result = run(suite, errors=1)
        result.stdout.fnmatch_lines(["*acme*"])


class TestDevice:
    def test_runs_every_test_there(self, run: Run) -> None:
        suite = """
            import torch
            def test_it(): assert torch.ones(2).device == torch.device("fl:1")
            def test_fallback(): torch.erfinv(torch.zeros(2))
        """
        result = run(suite, "--flroute-device=reference:1", passed=2)
        result.stdout.fnmatch_lines(["  aten::erfinv no_kernel in 1 test"])

    def test_that_does_not_exist_is_a_usage_error(self, run: Run) -> None:
        result = run(SUITE, "--flroute-device=acme")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(["*acme*"])

    def test_leaves_nothing_behind(self, run: Run) -> None:
        run(SUITE, "--flroute-device=reference", "--flroute-fallback=error")
        assert torch.ones(1).device.type == "cpu"


class TestFixtures:
    SUITE = """
        import torch
        def test_session(flroute_session):
            x = torch.ones(2) + 1
            assert str(x.device) == flroute_session.device.name
            assert "aten::add.Tensor" in {d.op for d in flroute_session.decisions}
        def test_vendor(flroute_vendor): assert flroute_vendor in (None, "reference", "opaque", "opaque:1")
    """

    def test_work_without_options(self, run: Run) -> None:
        run(self.SUITE, passed=2)

    def test_run_once_per_vendor(self, run: Run) -> None:
        result = run(self.SUITE, "--flroute-vendors=reference,opaque:1", "-v", passed=4)
        result.stdout.fnmatch_lines(
            ["*test_session[[]reference]*PASSED*", "*test_session[[]opaque:1]*PASSED*"]
        )

    def test_use_the_session_that_is_open(self, run: Run) -> None:
        suite = """
            import torch
            def test_it(flroute_session, flroute_vendor):
                assert flroute_vendor == "reference"
                assert torch.ones(2).device.type == "fl"
                assert flroute_session.decisions
        """
        run(suite, "--flroute-device=reference", passed=1)


class TestBaseline:
    @pytest.fixture
    def baseline(self, pytester: pytest.Pytester) -> Path:
        return pytester.path / "fallbacks.json"

    def test_is_written_when_asked(self, run: Run, baseline: Path) -> None:
        run(SUITE, "--flroute-baseline=fallbacks.json", "--flroute-update-baseline", passed=2)
        record = json.loads(baseline.read_text())
        assert record["schema_version"] == 1
        ((test, entries),) = record["fallbacks"].items()
        assert test.endswith("::test_fallback")
        assert entries == ["aten::erfinv no_kernel"]

    def test_admits_what_it_has_and_no_more(self, run: Run, baseline: Path) -> None:
        run(SUITE, "--flroute-baseline=fallbacks.json", "--flroute-update-baseline")
        run(SUITE, "--flroute-baseline=fallbacks.json", passed=2)
        more = SUITE + '        torch.hypot(*torch.ones(2, 1, device="fl"))\n'
        result = run(more, "--flroute-baseline=fallbacks.json", passed=1, failed=1)
        result.stdout.fnmatch_lines(["*that *fallbacks.json does not have:", "*aten::hypot on fl:0*"])
        result.stdout.no_fnmatch_line("*aten::erfinv on fl:0*")

    def test_fails_the_run_over_an_entry_that_is_gone(self, run: Run, baseline: Path) -> None:
        run(SUITE, "--flroute-baseline=fallbacks.json", "--flroute-update-baseline")
        cured = SUITE.replace("erfinv", "neg")
        result = run(cured, "--flroute-baseline=fallbacks.json", passed=2)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(["no longer true; *", "  *::test_fallback: aten::erfinv no_kernel"])
        run(cured, "--flroute-baseline=fallbacks.json", "--flroute-update-baseline")
        assert run(cured, "--flroute-baseline=fallbacks.json").ret == pytest.ExitCode.OK
        assert json.loads(baseline.read_text())["fallbacks"] == {}

    def test_keeps_the_entries_of_tests_that_did_not_run(self, run: Run, baseline: Path) -> None:
        run(SUITE, "--flroute-baseline=fallbacks.json", "--flroute-update-baseline")
        before = baseline.read_text()
        options = ("--flroute-baseline=fallbacks.json", "-k", "test_native")
        assert run(SUITE, *options).ret == pytest.ExitCode.OK
        run(SUITE, *options, "--flroute-update-baseline")
        assert baseline.read_text() == before

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"schema_version": 7, "fallbacks": {}}', "*schema version 7, this flroute reads 1*"),
            ('{\n"schema_version": 1,,', "*fallbacks.json:2: the baseline is not valid JSON*"),
            ('{"schema_version": 1, "fallbacks": ["a"]}', "*no table of fallbacks by test*"),
            ("[]", "*schema version None*"),
        ],
    )
    def test_that_cannot_be_used_is_a_usage_error(
        self, run: Run, baseline: Path, text: str, message: str
    ) -> None:
        baseline.write_text(text)
        result = run(SUITE, "--flroute-baseline=fallbacks.json")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([message])
        assert baseline.read_text() == text

    @pytest.mark.parametrize(
        ("option", "message"),
        [
            ("--flroute-baseline=none.json", "*there is no baseline *none.json: make it anew*"),
            ("--flroute-fallback=baseline", "*add --flroute-baseline FILE*"),
            ("--flroute-update-baseline", "*add --flroute-baseline FILE*"),
        ],
    )
    def test_that_is_missing_is_a_usage_error(self, run: Run, option: str, message: str) -> None:
        result = run(SUITE, option)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([message])


MANY = """
    import pytest, torch

    @pytest.mark.parametrize("n", range(6))
    def test_native(n): torch.ones(2, device="fl").add(n)

    {mark}
    def test_fallback(): torch.ones(2, device="fl:{opaque}").exp()
"""


class TestTogetherWithOthers:
    @pytest.fixture
    def many(self) -> str:
        """A suite of its own processes: there only the opaque vendor lacks kernels."""
        return MANY.replace("{opaque}", str(flroute.device("opaque").index))

    def test_xdist_gives_one_summary_and_one_baseline(self, pytester: pytest.Pytester, many: str) -> None:
        pytester.makepyfile(many.replace("{mark}", ""))
        options = ("-n", "2", "--flroute-baseline=known.json")
        written = pytester.runpytest_subprocess(*options, "--flroute-update-baseline")
        written.assert_outcomes(passed=7)
        written.stdout.fnmatch_lines(
            ["7 tests, * native, 1 kind of fallback", "  aten::exp no_kernel in 1 test"]
        )
        assert len(json.loads((pytester.path / "known.json").read_text())["fallbacks"]) == 1
        failing = pytester.runpytest_subprocess("-n", "2", "--flroute-fallback=error")
        failing.assert_outcomes(passed=6, failed=1)

    def test_xdist_s_controller_hears_of_marked_tests(self, pytester: pytest.Pytester, many: str) -> None:
        pytester.makepyfile(many.replace("{mark}", "@pytest.mark.flroute(allow=['aten::exp'])"))
        result = pytester.runpytest_subprocess("-n", "2")
        result.assert_outcomes(passed=7)
        result.stdout.fnmatch_lines(["  aten::exp no_kernel in 1 test"])

    def test_junit_files_carry_the_counts(self, run: Run, pytester: pytest.Pytester) -> None:
        run(SUITE, "--flroute-fallback=report", "--junit-xml=out.xml", passed=2)
        cases = ET.parse(pytester.path / "out.xml").iter("testcase")
        found = {
            case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")} for case in cases
        }
        assert found["test_fallback"]["flroute_fallbacks"] == "aten::erfinv no_kernel"
        assert found["test_fallback"]["flroute_fallback_calls"] == "1"
        assert found["test_native"]["flroute_fallbacks"] == ""
        assert int(found["test_native"]["flroute_native_calls"] or 0) >= 1


def test_the_plugin_is_loaded_from_the_entry_point() -> None:
    assert "flroute_pytest" in sys.modules
