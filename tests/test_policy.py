"""Policy: which rule holds for which call, what it makes of the candidates, and what is said about rules that cannot."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import flroute
from flroute import SettingsError
from flroute.cli import app
from flroute.policy import Rule, read_rule
from flroute.policy_check import check_policy
from flroute.settings import explain_settings, load_settings
from flroute.vendor import Kernel
from support import Made, Vendors, decision_of, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)
runner = CliRunner()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, current, with no variable of ours set."""
    for variable in [name for name in os.environ if name.startswith("FLROUTE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(vendors: Vendors) -> Made:
    """A vendor with two kernels for neg, ``first`` before ``second``, and one for abs."""
    return vendors(
        Kernel("aten::neg", named("first", lambda x: -x), implementation="fast"),
        Kernel("aten::neg", named("second", lambda x: -x), implementation="slow"),
        Kernel("aten::abs", named("magnitude", lambda x: np.maximum(x, -x)), implementation="fast"),
    )


def taken(session: flroute.Session, op: str = "aten::neg") -> list[str]:
    """The kernel's function, or the route, of each decision on the op."""
    return [d.kernel.rpartition(":")[2] if d.kernel else str(d.route) for d in decisions_of(session, op)]


def neg(
    made: Made, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, **settings: Any
) -> list[str]:
    with flroute.enable(made.name, fallback="allow", default_device=False, **settings) as session:
        for shape in shapes or ((2,),):
            for _ in range(3):
                x = torch.ones(shape, dtype=dtype)
                assert torch.equal(torch.neg(made.put(x)).cpu(), -x)
    return taken(session)


# -- which kernels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "order", "expected"),
    [
        ("aten::neg", ["slow"], "second"),
        ("aten::neg", ["slow:second", "fast"], "second"),
        ("aten::n*g", ["s*w"], "second"),
        ("aten::neg", ["*/slow:*"], "second"),
        ("aten::neg", ["host", "fast"], "fallback"),
        ("aten::abs", ["host"], "first"),
    ],
)
def test_an_order_by_name_and_by_glob(op: str, order: list[str], expected: str, made: Made) -> None:
    assert neg(made, order={op: order}) == [expected]
    assert neg(made, rules=[{"op": op, "order": order}]) == [expected]


def test_an_op_without_overload_means_all_of_them(made: Made) -> None:
    with flroute.enable("reference", fallback="allow", order={"aten::add": ["host"]}) as session:
        torch.add(torch.ones(2), torch.ones(2))
        torch.ones(2).add_(1)
    assert {(d.op, str(d.route)) for d in session.decisions if d.op.startswith("aten::add")} == {
        ("aten::add.Tensor", "fallback"),
        ("aten::add_.Tensor", "fallback"),
    }


def test_the_overload_without_a_name_has_one_in_rules(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::mean", named("whole", lambda x, *, dtype=None: np.mean(x, dtype=x.dtype))),
        Kernel("aten::mean.dim", named("rows", _mean_of_rows)),
    )
    x = made.put(torch.ones(2, 3))
    with flroute.enable(made.name, fallback="allow", order={"aten::mean.default": ["host"]}) as session:
        x.mean(1), x.mean()
    assert taken(session, "aten::mean") == ["decomposed"]
    assert set(taken(session, "aten::mean.dim")) == {"rows"}  # PyTorch splits the other one into it
    with flroute.enable(made.name, fallback="allow", order={"aten::mean": ["host"]}) as session:
        x.mean(1)
    assert taken(session, "aten::mean.dim") == ["fallback"]


def _mean_of_rows(x: Any, dim: Any, keepdim: Any = False, *, dtype: Any = None) -> Any:
    return np.mean(x, tuple(dim) or None, keepdims=keepdim, dtype=x.dtype)


def test_the_first_rule_that_holds_decides(made: Made) -> None:
    rules = [
        {"op": "aten::neg", "order": ["host"], "dtype": "float64"},
        {"op": "aten::*", "order": ["slow"]},
        {"op": "aten::neg", "order": ["fast"]},
    ]
    assert neg(made, rules=rules, order={"aten::neg": ["fast"]}) == ["second"]
    assert neg(made, rules=rules, dtype=torch.float64) == ["fallback"]


def test_rules_about_size_are_asked_on_each_call(made: Made) -> None:
    rules = [
        {"op": "aten::neg", "order": ["slow"], "min_numel": 4, "max_numel": 8},
        {"op": "aten::neg", "order": ["host"], "min_numel": 9},
    ]
    assert neg(made, (3,), (4,), (2, 4), (9,), rules=rules) == ["first", "second", "second", "fallback"]


class Block(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)


def test_rules_about_modules_and_phases(made: Made) -> None:
    model = torch.nn.Sequential(torch.nn.ModuleDict({"attention": Block(), "mlp": Block()}))
    model.forward = lambda x: model[0]["mlp"](model[0]["attention"](x))  # type: ignore[method-assign, assignment, index]
    rules = [
        {"op": "aten::neg", "order": ["host"], "phase": "backward"},
        {"op": "aten::neg", "order": ["slow"], "module": "*.attention"},
    ]
    with flroute.enable(
        made.name, fallback="allow", default_device=False, modules=True, rules=rules
    ) as session:
        for _ in range(2):
            model(made.put(torch.ones(2)).requires_grad_()).sum().backward()
    found = {(d.module, str(d.phase)): (taken_by(d), d.calls) for d in decisions_of(session, "aten::neg")}
    assert found == {
        ("0.attention", "forward"): ("second", 2),
        ("0.mlp", "forward"): ("first", 2),
        ("0.attention", "backward"): ("fallback", 2),
        ("0.mlp", "backward"): ("fallback", 2),
    }


@pytest.mark.parametrize("changed", [False, True])
def test_a_rule_about_a_module_holds_in_its_backward(made: Made, changed: bool) -> None:
    """Whether or not the session counts modules."""
    model = torch.nn.Sequential(Block(), Block())
    rules = [{"op": "aten::neg", "order": ["slow"], "module": "1"}]
    with (
        flroute.enable(made.name, default_device=False, rules=() if changed else rules) as session,
        session.change(rules=rules if changed else ()),
    ):
        model(made.put(torch.ones(2)).requires_grad_()).sum().backward()
    found = {taken_by(d): d.calls for d in decisions_of(session, "aten::neg")}
    assert found == {"first": 2, "second": 2}, "forward and backward"


def taken_by(decision: flroute.Decision) -> str:
    return decision.kernel.rpartition(":")[2] if decision.kernel else str(decision.route)


@pytest.mark.parametrize(
    ("settings", "expected", "why"),
    [
        ({"deny": ["fast"]}, "second", "denied by 'fast'"),
        ({"deny": ["*/fast:f*", "slow:second"]}, "fallback", "denied by '*/fast:f*'"),
        ({"allow": ["slow"]}, "second", "not among those allowed: slow"),
        ({"allow": "*/slow:*"}, "second", "not among those allowed: */slow:*"),
        ({"deny": ["fast"], "order": {"aten::neg": ["fast", "slow"]}}, "second", "denied by 'fast'"),
    ],
)
def test_allowed_and_denied(settings: dict[str, Any], expected: str, why: str, made: Made) -> None:
    assert neg(made, **settings) == [expected]
    with flroute.enable(made.name, fallback="allow", default_device=False, **settings) as session:
        torch.neg(made.put(torch.ones(2)))
    first = decision_of(session, "aten::neg").rejected[0]
    assert (first.kernel, str(first.reason), first.detail) == (f"{made.name}/fast:first", "policy", why)


def test_denying_a_whole_vendor_under_error_refuses_before_any_work(made: Made) -> None:
    with (
        flroute.enable(made.name, fallback="error", deny=[made.name], default_device=False),
        pytest.raises(flroute.FallbackError, match=f"policy.*denied by '{made.name}'"),
    ):
        torch.neg(made.put(torch.ones(2)))


def test_a_change_is_seen_by_the_next_call_and_undone(made: Made) -> None:
    with flroute.enable(made.name, fallback="allow", default_device=False) as session:
        x = made.put(torch.ones(2))
        for _ in range(3):
            torch.neg(x)
        with session.change(order={"aten::neg": ["slow"]}):
            torch.neg(x)
            with session.change(deny=["slow"], fallback="error"), pytest.raises(flroute.FallbackError):
                torch.neg(x)
            torch.neg(x)
        torch.neg(x)
    assert [(taken_by(d), d.calls) for d in decisions_of(session, "aten::neg")] == [
        ("first", 4),
        ("second", 2),
    ]


def test_a_change_is_undone_after_an_error(made: Made) -> None:
    with flroute.enable(made.name, default_device=False) as session:
        before = session.router.settings
        with pytest.raises(ZeroDivisionError), session.change(precision="medium"):
            raise ZeroDivisionError
        assert session.router.settings == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trace": "t.jsonl"}, "'trace' is fixed once a session is open"),
        ({"ordr": {}}, "unknown setting 'ordr'"),
        ({"order": {"aten::nope": ["host"]}}, "argument: this PyTorch has no op 'aten::nope'"),
        ({"allow": ["x"], "deny": ["x"]}, "'x' is denied, and allowed"),
    ],
)
def test_what_cannot_change(change: dict[str, Any], message: str) -> None:
    with (
        flroute.enable("reference") as session,
        pytest.raises(SettingsError, match=message),
        session.change(**change),
    ):
        pass


# -- where it comes from ---------------------------------------------------------------------------------------------

FILE = """
deny = ["slow"]

[[rules]]
op = "aten::*_backward"
order = ["numpy", "host"]
phase = ["backward"]

[[rules]]
op = "aten::mm"
order = ["host"]
dtype = "torch.bfloat16"
min_numel = 4096
module = "encoder.*"
"""


def test_rules_of_a_file(project: Path) -> None:
    (project / "flroute.toml").write_text(FILE)
    settings = load_settings()
    assert settings.deny == ("slow",)
    assert settings.rules == (
        read_rule({"op": "aten::*_backward", "order": ["numpy", "host"], "phase": "backward"}),
        read_rule(
            {"op": "aten::mm", "order": "host", "dtype": "bfloat16", "min_numel": 4096, "module": "encoder.*"}
        ),
    )
    assert [rule.where for rule in settings.rules] == [f"{project}/flroute.toml:{line}" for line in (4, 9)]


def test_rules_add_up_and_those_of_arguments_come_first(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "pyproject.toml").write_text('[[tool.flroute.rules]]\nop = "aten::c"\norder = ["host"]\n')
    monkeypatch.setenv("FLROUTE_RULES", '[{"op": "aten::b", "order": ["host"]}]')
    monkeypatch.setenv("FLROUTE_ALLOW", "numpy, triton")
    settings = load_settings(rules=[{"op": "aten::a", "order": ["host"]}])
    assert [(rule.op, rule.where) for rule in settings.rules] == [
        ("aten::a", "argument"),
        ("aten::b", "FLROUTE_RULES"),
        ("aten::c", f"{project}/pyproject.toml:1"),
    ]
    assert settings.allow == ("numpy", "triton")


def test_a_rejection_says_which_rule(made: Made, project: Path) -> None:
    (project / "flroute.toml").write_text('[[rules]]\nop = "aten::neg"\norder = ["slow"]\n')
    with flroute.enable(made.name, default_device=False) as session:
        torch.neg(made.put(torch.ones(2)))
    (rejection,) = decision_of(session, "aten::neg").rejected
    assert rejection.detail == f"not in order for aten::neg ({project}/flroute.toml:1)"


# -- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ('op = "aten::mm"', "'order' must name at least one candidate"),
        ('order = ["host"]', "'op' must name ops with their namespace, such as 'aten::mm', not None"),
        ('op = "mm"\norder = ["host"]', "'op' must name ops with their namespace"),
        ('op = "aten::mm"\norder = [1]', "'order' must be a word or a list of words"),
        ('op = "aten::mm"\norder = "host"\nshape = 3', "a rule has no key 'shape'; it has op, order, dtype"),
        (
            'op = "aten::mm"\norder = "host"\nphase = "sideways"',
            "'phase' is one of forward, backward, optimizer",
        ),
        (
            'op = "aten::mm"\norder = "host"\nmin_numel = -1',
            "'min_numel' must be a number of elements, not -1",
        ),
        (
            'op = "aten::mm"\norder = "host"\nmax_numel = true',
            "'max_numel' must be a number of elements, not True",
        ),
        ('op = "aten::mm"\norder = "host"\nmin_numel = 9\nmax_numel = 8', "min_numel 9 is above max_numel 8"),
        ('op = "aten::mm"\norder = "host"\nmodule = 3', "'module' must be the path of a module"),
    ],
)
def test_a_wrong_rule_is_named_with_its_line(rule: str, message: str, project: Path) -> None:
    (project / "flroute.toml").write_text(
        f'[[rules]]\nop = "aten::add"\norder = ["host"]\n\n[[rules]]\n{rule}\n'
    )
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert str(error.value).startswith(f"{project}/flroute.toml:5: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules = 3\n", r":1: 3 is not allowed for 'rules'.*a list of rules"),
        ("rules = [3]\n", r":1: a rule is a table, not 3"),
        ("deny = []\n", r":1: \[\] is not allowed for 'deny'"),
        ("allow = ['a', 'b']\ndeny = ['b']\n", r":2: 'b' is denied, and allowed at .*:1\. Take it out"),
        ("[[rules]\n", "not valid TOML"),
        ("rules = [{op = 'aten::mm', order = ['a']},\n {op = 'aten::mm', order = ['b']}]\n",
         r"rule for 'aten::mm' says \['b'\], and the one at .*flroute\.toml:1 says \['a'\] of the same calls"),
    ],
)  # fmt: skip
def test_a_wrong_file(text: str, message: str, project: Path) -> None:
    (project / "flroute.toml").write_text(text)
    with pytest.raises(SettingsError, match=message):
        load_settings()


def test_a_file_that_cannot_be_read(project: Path) -> None:
    (project / "flroute.toml").write_bytes(b"timing = true # \xff\n")
    with pytest.raises(SettingsError, match=r"flroute\.toml cannot be read: 'utf-8' codec"):
        load_settings()


def test_rules_in_a_variable_that_are_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_RULES", "aten::mm=host")
    with pytest.raises(SettingsError, match=r"FLROUTE_RULES: 'aten::mm=host' is not allowed.*JSON"):
        load_settings()


@pytest.mark.parametrize("setting", ["order", "rules"])
def test_a_rule_for_an_op_that_does_not_exist(setting: str, project: Path) -> None:
    text = {
        "order": '\norder = {"aten::sofmax" = ["host"]}',
        "rules": '\n[[rules]]\nop = "aten::sofmax"\norder = ["host"]',
    }
    (project / "flroute.toml").write_text(text[setting])
    with pytest.raises(
        SettingsError, match=r"flroute\.toml:2: this PyTorch has no op 'aten::sofmax'; did you mean 'aten::"
    ):
        flroute.enable("reference")


def rule(op: str, *order: str, **conditions: Any) -> dict[str, Any]:
    return {"op": op, "order": list(order) or ["numpy"], **conditions}


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"rules": [rule("aten::mm"), rule("aten::add.Tensor", "numpy", "host")]}, []),
        ({"rules": [rule("aten::nope")]}, ["unknown op"]),
        ({"rules": [rule("aten::nope_*")]}, ["unknown op"]),
        ({"order": {"aten::nope": ["host"]}}, ["unknown op"]),
        ({"rules": [rule("aten::mm", "nunpy")]}, ["dead target"]),
        ({"rules": [rule("aten::mm", "numpy:relu", "host")]}, ["dead target"]),
        ({"rules": [rule("aten::mm", "host", "numpy")]}, ["unreachable"]),
        ({"rules": [rule("aten::mm"), rule("aten::mm.*"), rule("aten::mm")]}, ["shadowed", "shadowed"]),
        ({"rules": [rule("aten::mm"), rule("aten::mm", "host", dtype="bfloat16")]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", dtype=["float32", "bfloat16"]), rule("aten::mm", "host", dtype="bfloat16")]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", dtype="bfloat16"), rule("aten::mm", "host")]}, []),
        ({"rules": [rule("aten::mm", min_numel=4), rule("aten::mm", "host", min_numel=8)]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", min_numel=8), rule("aten::mm", "host", min_numel=4)]}, []),
        ({"rules": [rule("aten::mm", max_numel=8), rule("aten::mm", "host", max_numel=4)]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", max_numel=8), rule("aten::mm", "host")]}, []),
        ({"rules": [rule("aten::mm", module="a.*"), rule("aten::mm", "host", module="a.b")]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", module="a.b"), rule("aten::mm", "host", module="a.*")]}, []),
        ({"rules": [rule("aten::mm", phase=["forward", "backward"]), rule("aten::mm", "host", phase="forward")]}, ["shadowed"]),
        ({"rules": [rule("aten::mm", phase="backward"), rule("aten::mm", "host", phase="forward")]}, []),
        ({"rules": [rule("aten::sin"), rule("aten::cos"), rule("aten::[sc][io][nsg]")]}, ["unreachable"]),
        ({"rules": [rule("aten::sin"), rule("aten::cos"), rule("aten::[sct][aio][nsg]")]}, []),
        ({"rules": [rule("aten::sin"), rule("aten::cos"), rule("aten::sin"), rule("aten::cos")]}, ["shadowed", "shadowed"]),
        ({"rules": [rule("aten::mm")], "order": {"aten::mm": ["host"]}}, ["shadowed"]),
        ({"rules": [rule("aten::t", "host")]}, ["no effect"]),
        ({"rules": [rule("aten::mm")], "deny": ["numpy"]}, ["contradiction"]),
        ({"rules": [rule("aten::mm", "numpy", "host")], "allow": ["numpy:add"]}, ["contradiction"]),
        ({"deny": ["nunpy"]}, ["dead target"]),
        ({"allow": ["host"]}, ["dead target"]),
    ],
)  # fmt: skip
def test_what_the_check_finds(settings: dict[str, Any], kinds: list[str]) -> None:
    assert [finding.kind for finding in check_policy(explain_settings(**settings))] == kinds


def test_the_command_names_file_and_line(project: Path) -> None:
    (project / "flroute.toml").write_text(
        '\norder = {"aten::mm" = ["nunpy"]}\n[[rules]]\nop = "aten::mmm"\norder = "host"\n'
    )
    shown = runner.invoke(app, ["config", "--check"])
    assert shown.exit_code == 1
    assert shown.output.splitlines() == [
        f"{project}/flroute.toml:3: unknown op: this PyTorch has no op 'aten::mmm'; did you mean 'aten::mm'?",
        f"{project}/flroute.toml:2: dead target: 'nunpy' names no vendor, implementation or kernel here; did you mean 'numpy'?",
        "2 found",
    ]
    rows = json.loads(runner.invoke(app, ["config", "--check", "--json"]).output)
    assert [(row["kind"], row["where"].rpartition(":")[2]) for row in rows] == [
        ("unknown op", "3"),
        ("dead target", "2"),
    ]


def test_the_command_is_content_with_a_good_policy(project: Path) -> None:
    (project / "flroute.toml").write_text('order = {"aten::mm" = ["numpy", "host"]}\n')
    shown = runner.invoke(app, ["config", "--check"])
    assert (shown.exit_code, shown.output) == (0, "nothing is wrong with the policy\n")
    assert '"aten::mm": ["numpy", "host"]' in runner.invoke(app, ["config"]).output


def test_the_command_fails_over_a_file_that_is_wrong(project: Path) -> None:
    (project / "flroute.toml").write_text("rules = 3\n")
    shown = runner.invoke(app, ["config", "--check"])
    assert (shown.exit_code, "flroute.toml:1" in shown.output) == (2, True)


def test_a_rule_equals_another_wherever_it_stands() -> None:
    assert Rule("aten::mm", ("host",), where="a:1") == Rule("aten::mm", ("host",), where="b:2")
