"""What another policy would have chosen is what it does choose, as far as the record tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import flroute
from flroute import Decision, Reason, Route
from flroute.cli import app
from flroute.replay import replay
from flroute.routing.trace import read
from flroute.settings import load_settings
from flroute.vendor import Kernel, Unsupported
from support import Made, Vendors, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)
runner = CliRunner()


def refuses(x: Any) -> Any:
    raise Unsupported("not today")


@pytest.fixture
def made(vendors: Vendors) -> Made:
    """A vendor whose kernels for neg are rejected each for another reason, up to the last."""
    return vendors(
        Kernel("aten::neg", named("halves", lambda x: -x), dtypes=(torch.float16,)),
        Kernel("aten::neg", named("long", lambda x: -x), min_numel=100),
        Kernel("aten::neg", named("never", lambda x: -x), when=lambda x: "never"),
        Kernel("aten::neg", named("refuses", refuses)),
        Kernel("aten::neg", named("rough", lambda x: -x), precision=flroute.Precision.MEDIUM),
        Kernel("aten::neg", named("plain", lambda x: -x), implementation="slow"),
        Kernel("aten::neg", named("asked", lambda x: -x), when=lambda x: True, implementation="slow"),
    )


def run(made: Made, **settings: Any) -> flroute.Session:
    """Calls in a module, forward and backward, with two shapes."""
    module = torch.nn.Sequential(Negate())
    with flroute.enable(
        made.name, fallback="allow", default_device=False, modules=True, **settings
    ) as session:
        for size in (3, 200):
            module(made.put(torch.ones(size)).requires_grad_()).sum().backward()
            made.put(torch.ones(size)).add_(1).neg_()
    return session


class Negate(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.neg(x)


Ways = dict[tuple[Any, ...], tuple[str, str | None]]


def ways(session: flroute.Session) -> Ways:
    return {call(d): (str(d.route), d.kernel) for d in session.decisions if "neg" in d.op}


def call(d: Decision) -> tuple[Any, ...]:
    return d.op, d.dtypes, d.shapes, d.module, d.phase


@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"precision": "medium"},
        {"order": {"aten::neg*": ["host"]}},
        {"order": {"aten::neg": ["slow"]}},
        {"order": {"aten::neg": ["asked", "plain"], "aten::neg_": ["*:plain"]}},
        {"deny": ["slow"]},
        {"allow": ["*:long", "host"]},
        {"rules": [{"op": "aten::neg", "order": ["host"], "phase": "backward"}]},
        {"rules": [{"op": "aten::neg", "order": ["host"], "module": "0"}]},
        {"rules": [{"op": "aten::neg*", "order": ["slow"], "min_numel": 50}]},
        {"rules": [{"op": "aten::neg", "order": ["host"], "dtype": "float64"}]},
    ],
)
def test_it_is_what_that_policy_does_choose(policy: dict[str, Any], made: Made) -> None:
    recorded = run(made)
    found = replay(recorded.decisions, load_settings(**policy))
    told = {call(r.decision): (str(r.route), r.kernel) for r in found if "neg" in r.decision.op}
    assert told == ways(run(made, **policy))
    assert len(told) >= 6


def test_a_kernel_that_was_not_asked_is_not_certain(made: Made) -> None:
    recorded = run(made)
    found = replay(recorded.decisions, load_settings(order={"aten::neg": ["*:asked"]}))
    assert {r.certain for r in found if r.decision.op == "aten::neg"} == {False}
    assert {r.certain for r in replay(recorded.decisions, load_settings())} == {True}


def test_what_cannot_be_told_stays_as_recorded() -> None:
    rest = Decision("aten::neg", Route.NATIVE, "a/b:c", "fl:0", Reason.MATCHED, calls=3, rest=True)
    gone = Decision("aten::no_more", Route.NATIVE, "a/b:c", "fl:0", Reason.MATCHED, calls=3)
    view = Decision("aten::t", Route.VIEW, None, "fl:0", Reason.METADATA, calls=3)
    found = replay([rest, gone, view], load_settings(deny=["reference"]))
    assert [(r.changed, r.told) for r in found] == [(False, False), (False, False), (False, True)]
    assert [r.detail for r in found][:2] == [
        "of many signatures, which were added up",
        "this PyTorch lacks the op",
    ]


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with flroute.enable("reference", fallback="allow", trace=path):
        torch.exp(torch.zeros(2, 3))
        torch.erfinv(torch.zeros(2))
    return path


def replayed(trace: Path, policy: str, *more: str, name: str = "policy.toml") -> Any:
    file = trace.with_name(name)
    file.write_text(policy)
    return runner.invoke(app, ["replay", str(trace), "--policy", str(file), *more])


def test_the_command_names_what_would_change(trace: Path) -> None:
    shown = replayed(trace, '[order]\n"aten::exp" = ["host"]\n')
    assert shown.exit_code == 1
    assert "aten::exp  float32  [2, 3]  1      native reference/numpy:exp  fallback" in shown.output
    assert f"{len(read(trace).decisions)} decisions, 1 of them other ones, 1 new fallbacks" in shown.output


def test_a_pyproject_may_be_the_policy(trace: Path) -> None:
    shown = replayed(trace, '[tool.flroute]\nfallback = "warn"\n', name="pyproject.toml")
    assert (shown.exit_code, "no decision would be another one" in shown.output) == (0, True)


def test_the_command_in_json(trace: Path) -> None:
    rows = json.loads(replayed(trace, 'deny = ["reference/*"]\n', "--json").output)
    (exp,) = [row for row in rows if row["decision"]["op"] == "aten::exp"]
    assert (exp["route"], exp["changed"], exp["new_fallback"]) == ("fallback", True, True)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("rules = 3\n", "policy.toml:1: 3 is not allowed for 'rules'"),
        ('order = {"aten::nope" = ["host"]}\n', "policy.toml:1: this PyTorch has no op 'aten::nope'"),
        ("fallback = \n", "not valid TOML"),
    ],
)
def test_a_wrong_policy_is_told(policy: str, message: str, trace: Path) -> None:
    shown = replayed(trace, policy)
    assert (shown.exit_code, message in shown.output) == (2, True)


def test_files_that_are_not_there(trace: Path, tmp_path: Path) -> None:
    none = str(tmp_path / "none")
    assert "there is no such file" in runner.invoke(app, ["replay", str(trace), "--policy", none]).output
    (tmp_path / "p.toml").write_text("")
    missing = runner.invoke(app, ["replay", none, "--policy", str(tmp_path / "p.toml")])
    assert (missing.exit_code, "cannot be read" in missing.output) == (2, True)
    assert "has no table [tool.flroute]" in replayed(trace, "[project]\n", name="pyproject.toml").output
