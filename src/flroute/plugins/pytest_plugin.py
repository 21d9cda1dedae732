"""The pytest plugin: runs tests on a device, and fails those in which the host computed unseen.

Each test's outcome travels in its report's properties, so the summary, the baseline and JUnit files are the same with
and without xdist. ``flroute_pytest.py`` declares options and fixtures, and makes a ``Plugin`` once somebody asks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from flroute.api import device as find_device
from flroute.errors import FlrouteError
from flroute.plugins.baseline import Baseline, BaselineError
from flroute.report import counted
from flroute.routing.capture import Capture
from flroute.session import Session, enable
from flroute.testing import capture_decisions, describe_fallback, unexpected_fallbacks
from flroute.vocabulary import Decision, FallbackPolicy, Route

NATIVE, FELL_BACK, FALLBACKS, GONE = (
    "flroute_native_calls",
    "flroute_fallback_calls",
    "flroute_fallbacks",
    "flroute_gone",
)
"""Properties of a test's report: two counts, and two lists of fallbacks with ``; `` between."""


@dataclass
class _Run:
    """One test under way."""

    captured: Capture
    stack: ExitStack
    session: Session | None
    passed: bool = False


_RUN = pytest.StashKey[_Run]()


class Plugin:
    """The hooks of one pytest run.

    Args:
        config: of the run.

    Raises:
        pytest.UsageError: no such device, or a baseline that cannot be read.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._device: str | None = config.getoption("flroute_device")
        self._mode: str | None = config.getoption("flroute_fallback")
        self._update: bool = config.getoption("flroute_update_baseline")
        path = config.getoption("flroute_baseline")
        if path is None and (self._mode == "baseline" or self._update):
            raise pytest.UsageError("a baseline needs a file: add --flroute-baseline FILE")
        self._baseline: Baseline | None = None
        try:
            for name in (self._device, *(config.getoption("flroute_vendors") or ())):
                if name is not None:
                    find_device(name)
            if path is not None:
                self._mode = self._mode or "baseline"
                self._baseline = Baseline(config.invocation_params.dir / path, may_be_absent=self._update)
        except (FlrouteError, BaselineError) as error:
            raise pytest.UsageError(str(error)) from error
        self._writes = not hasattr(config, "workerinput")  # under xdist the controller sees every report
        self._totals = _Totals()

    # -- what the fixtures ask

    def device_of(self, item: pytest.Item) -> str | None:
        """The device a test runs on; ``None`` if nobody named one."""
        chosen = getattr(item, "callspec", None)
        if chosen is not None and "flroute_vendor" in chosen.params:
            return str(chosen.params["flroute_vendor"])
        marker = item.get_closest_marker("flroute")
        return (marker.kwargs.get("device") if marker else None) or self._device

    @contextmanager
    def session_of(self, item: pytest.Item, device: str | None) -> Iterator[Session]:
        """The session a test runs in, or a new one."""
        run = item.stash.get(_RUN, None)
        if run is not None and run.session is not None:
            yield run.session
            return
        with enable(device=device, fallback=FallbackPolicy.ALLOW) as session:
            yield session

    # -- one test

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Open what the test runs in."""
        failure = None
        try:
            item.stash[_RUN] = self._open(item)
        except FlrouteError as error:  # told once pytest has set the test up, else it cannot tear it down
            failure = error
        result = yield
        if failure is not None:
            pytest.fail(str(failure), pytrace=False)
        return result

    def _open(self, item: pytest.Item) -> _Run:
        with ExitStack() as stack:
            captured = stack.enter_context(capture_decisions())
            device = self.device_of(item)
            session = None
            if device is not None:  # every fallback is to be named, not only the first: none raises
                session = stack.enter_context(enable(device=device, fallback=FallbackPolicy.ALLOW))
            return _Run(captured, stack.pop_all(), session)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Judge a test that passed on its own account."""
        result = yield
        run = item.stash.get(_RUN, None)
        if run is not None:
            self._judge(item, run)
            run.passed = True
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Close what was opened, and put what happened into the test's report."""
        try:
            return (yield)
        finally:
            run = item.stash.get(_RUN, None)
            if run is not None:
                run.stack.close()
                self._record(item, run)

    def _judge(self, item: pytest.Item, run: _Run) -> None:
        marker = item.get_closest_marker("flroute")
        mode = self._mode or ("error" if marker else "report")
        if mode == "report" or self._update:
            return
        found = unexpected_fallbacks(run.captured.fallbacks, marker.kwargs.get("allow", ()) if marker else ())
        if mode == "baseline" and self._baseline is not None:
            known = self._baseline.of(item.nodeid)
            found = [decision for decision in found if _entry(decision) not in known]
        if found:
            where = (
                f" that {self._baseline.path} does not have" if mode == "baseline" and self._baseline else ""
            )
            lines = [
                f"{item.nodeid}: the host computed for the device{where}:",
                *map(describe_fallback, found),
            ]
            pytest.fail("\n".join(lines), pytrace=False)

    def _record(self, item: pytest.Item, run: _Run) -> None:
        decisions = run.captured.decisions
        entries = _entries(run.captured.fallbacks)
        calls = {route: sum(d.calls for d in decisions if d.route is route) for route in Route}
        properties = item.user_properties
        properties.append((NATIVE, str(calls[Route.NATIVE])))
        properties.append((FELL_BACK, str(calls[Route.FALLBACK])))
        properties.append((FALLBACKS, "; ".join(entries)))
        if self._baseline is not None and run.passed:
            gone = sorted(set(self._baseline.of(item.nodeid)) - set(entries))
            properties.append((GONE, "; ".join(gone)))

    # -- the whole run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect a test's properties; under xdist only the controller makes use of them."""
        if report.when == "teardown":
            self._totals.add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the baseline, or fail the run over entries that are no longer true."""
        if not self._writes or self._baseline is None:
            return
        if self._update:
            self._baseline.write(self._totals.fallbacks)
        elif self._totals.gone and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say what the host computed, in how many tests."""
        lines = self._totals.summary()
        if not lines:
            return
        terminalreporter.section("flroute")
        for line in lines:
            terminalreporter.write_line(line)
        if self._baseline is None:
            return
        if self._update:
            terminalreporter.write_line(f"written to {self._baseline.path}")
        elif self._totals.gone:
            terminalreporter.write_line(
                f"no longer true; take them out of {self._baseline.path} (--flroute-update-baseline):"
            )
            for test, entries in sorted(self._totals.gone.items()):
                terminalreporter.write_line(f"  {test}: {', '.join(entries)}")


class _Totals:
    """What all tests of a run add up to."""

    def __init__(self) -> None:
        self.fallbacks: dict[str, list[str]] = {}
        self.gone: dict[str, list[str]] = {}
        self._native = self._fell_back = 0

    def add(self, report: pytest.TestReport) -> None:
        """Count one test."""
        found = {name: str(value) for name, value in report.user_properties}
        if NATIVE not in found:
            return
        self._native += int(found[NATIVE])
        self._fell_back += int(found[FELL_BACK])
        self.fallbacks[report.nodeid] = _split(found[FALLBACKS])
        if gone := _split(found.get(GONE, "")):
            self.gone[report.nodeid] = gone

    def summary(self) -> list[str]:
        """Lines for the terminal; none if no test was looked at."""
        if not self.fallbacks:
            return []
        computed = self._native + self._fell_back
        share = (
            f"{self._native / computed:.2%} of {computed:,} computing calls native"
            if computed
            else "nothing computed"
        )
        tests: dict[str, int] = {}
        for entries in self.fallbacks.values():
            for entry in entries:
                tests[entry] = tests.get(entry, 0) + 1
        lines = [
            f"{counted(len(self.fallbacks), 'test')}, {share}, {counted(len(tests), 'kind')} of fallback"
        ]
        ranked = sorted(tests.items(), key=lambda row: (-row[1], row[0]))
        return lines + [f"  {entry} in {counted(number, 'test')}" for entry, number in ranked]


def _entry(decision: Decision) -> str:
    return f"{decision.op} {decision.reason}"


def _entries(decisions: Sequence[Decision]) -> list[str]:
    return sorted({_entry(decision) for decision in decisions})


def _split(text: str) -> list[str]:
    return text.split("; ") if text else []
