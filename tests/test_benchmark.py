"""``flroute bench``: the cases it can make, what it measures, and how it compares."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flroute.benchmark import measure
from flroute.benchmark.cases import Case, cases
from flroute.benchmark.measure import Change, Results, Row, changes, read, run
from flroute.benchmark.models import model_case
from flroute.benchmark.ops import op_case
from flroute.benchmark.timing import calls_that_take, compare, seconds_per_call
from flroute.cli import app
from flroute.errors import FlrouteError
from flroute.vendor import Kernel
from support import COPY, Vendors, throw_away_vendors

runner = CliRunner()
vendors = pytest.fixture(throw_away_vendors)

ADD = Row("add", device_seconds=2e-6, host_seconds=1e-6, ratio=0.5)
RESULTS = Results("acme:0", "1.2", "2.13.0", 1, (ADD, replace(ADD, name="mul", ratio=2.0)))


# Ops --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shapes", "arguments", "name", "result"),
    [
        ("aten::softmax", [(2, 3)], {}, "aten::softmax.int 2x3 float32 dim=-1", (2, 3)),
        ("aten::softmax", [(2, 3)], {"dim": 0}, "aten::softmax.int 2x3 float32 dim=0", (2, 3)),
        ("relu", [()], {}, "aten::relu scalar float32", ()),
        ("aten::mul", [(2, 3)], {}, "aten::mul.Tensor 2x3 2x3 float32", (2, 3)),
        ("aten::mul.Scalar", [(2, 3)], {"other": 2}, "aten::mul.Scalar 2x3 float32 other=2", (2, 3)),
        ("aten::mm", [(2, 3), (3, 5)], {}, "aten::mm 2x3 3x5 float32", (2, 5)),
        ("aten::linear", [(2, 3), (5, 3)], {}, "aten::linear 2x3 5x3 float32", (2, 5)),
        ("aten::linear", [(2, 3), (5, 3), (5,)], {}, "aten::linear 2x3 5x3 5 float32", (2, 5)),
        ("aten::cat", [(2, 3), (4, 3)], {}, "aten::cat 2x3 4x3 float32", (6, 3)),
        ("aten::sum", [(2, 3)], {}, "aten::sum.dim_IntList 2x3 float32", ()),
        ("aten::sum", [(2, 3)], {"dim": [1]}, "aten::sum.dim_IntList 2x3 float32 dim=[1]", (2,)),
        ("aten::gelu", [(2,)], {"approximate": "tanh"}, "aten::gelu 2 float32 approximate=tanh", (2,)),
    ],
)
def test_an_op_is_called_with_the_first_overload_that_fits(
    op: str, shapes: list[tuple[int, ...]], arguments: dict[str, object], name: str, result: tuple[int, ...]
) -> None:
    case = op_case(op, shapes, arguments=arguments)
    assert case.name == name
    assert case.make(*case.inputs())().shape == result


def test_each_tensor_has_its_dtype() -> None:
    case = op_case("aten::where.self", [(4,)], [torch.bool, torch.bfloat16])
    assert [x.dtype for x in case.inputs()] == [torch.bool, torch.bfloat16, torch.bfloat16]
    assert [x.tolist() for x in case.inputs()] == [x.tolist() for x in case.inputs()]


@pytest.mark.parametrize(
    ("op", "shapes", "arguments", "told"),
    [
        ("aten::sofmax", [(2,)], {}, r"no op 'aten::sofmax'; did you mean aten::softmax"),
        ("aten::zzz9", [(2,)], {}, r"no op 'aten::zzz9'; `flroute ops '\*part\*'` finds names"),
        ("aten::relu.nope", [(2,)], {}, r"no op 'aten::relu.nope'"),
        (
            "aten::relu",
            [(2,), (2,)],
            {},
            r"(?s)aten::relu cannot be called with 2 shapes.*takes 1 tensor, 2 shapes were given",
        ),
        ("aten::relu", [(2,)], {"dims": 1}, r"(?s)aten::relu cannot be called .*has no argument dims"),
        ("aten::narrow", [(2, 3)], {}, r"(?s)narrow.*needs start: --arg start="),
        ("aten::add.out", [(2,)], {}, r"results into out= are not measured"),
    ],
)
def test_an_op_that_cannot_be_called_so_is_an_error_in_words(
    op: str, shapes: list[tuple[int, ...]], arguments: dict[str, object], told: str
) -> None:
    with pytest.raises(FlrouteError, match=told):
        op_case(op, shapes, arguments=arguments)


# Models -----------------------------------------------------------------------------------------------------


class _NoParameters(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.device.type)
        return x * 2


def test_a_model_is_measured_end_to_end_and_left_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
    before = [parameter.clone() for parameter in model.parameters()]
    for train in (False, True):
        (row,) = run(
            [model_case("mlp", model, torch.ones(16, 8), train=train)], device="reference", rounds=1
        ).rows
        assert (row.name, row.samples) == (f"mlp, {'training step' if train else 'inference'}", 16)
        assert not row.fallbacks
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}


def test_samples_go_to_the_device_even_if_the_model_has_no_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _NoParameters()
    monkeypatch.setattr("copy.deepcopy", lambda it: it)
    run([model_case("twice", model, torch.ones(3))], device="reference", rounds=1)
    assert set(model.seen) == {"cpu", "fl"}


def test_a_training_step_trains_by_the_models_own_loss() -> None:
    class WithLoss(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return type("Output", (), {"loss": super().forward(x).square().sum()})()

    case = model_case("own", WithLoss(3, 2), torch.ones(5, 3), train=True)
    inputs = case.inputs()
    work = case.make(*inputs)
    before = inputs[0].weight.clone()
    assert work() > work() > 0
    assert not torch.equal(before, inputs[0].weight)


def test_nothing_to_count_or_to_train_is_an_error_in_words() -> None:
    with pytest.raises(FlrouteError, match="m: there is no tensor among its inputs"):
        model_case("m", torch.nn.Linear(2, 2), 3)
    with pytest.raises(FlrouteError, match="m: no parameter wants a gradient"):
        model_case("m", _NoParameters(), torch.ones(2), train=True)
    case = model_case("m", torch.nn.Linear(2, 2), torch.ones(2, 2), train=True)
    broken = Case(
        case.name, lambda: (torch.nn.Sequential(case.inputs()[0], _Detached()), torch.empty(0)), case.make
    )
    with pytest.raises(
        FlrouteError, match="m, training step: on the host: ValueError: no output of the model has a gradient"
    ):
        run([broken], device="reference", rounds=1)


class _Detached(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.detach()


# Measuring --------------------------------------------------------------------------------------------------


def test_time_is_told_by_the_clock_that_is_given() -> None:
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()

    def takes(seconds: float) -> None:
        clock.now += seconds

    assert seconds_per_call(lambda: takes(2.0), 5, clock) == 2.0
    assert calls_that_take(40.0, lambda: takes(2.0), clock) == 20
    opened: list[str] = []

    class Session:
        def __enter__(self) -> None:
            opened.append("session")

        def __exit__(self, *_: object) -> None:
            opened.append("closed")

    found = compare(lambda: takes(3.0), lambda: takes(6.0), 4, rounds=3, session=Session, clock=clock)
    assert tuple(found) == (3.0e6, 6.0e6, 0.5)
    assert opened == ["session", "closed"] * 3


def test_what_the_host_computes_for_the_device_is_told(vendors: Vendors) -> None:
    def add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
        return np.add(x, y * alpha)

    device = vendors(COPY, Kernel("aten::add.Tensor", add)).devices[0]
    found = run(
        [op_case("aten::add", [(4,)]), op_case("aten::erfinv", [(4,)])], device=device.vendor_device, rounds=1
    )
    assert [row.fallbacks for row in found.rows] == [(), ("aten::erfinv",)]
    assert (found.device, found.version, found.torch) == (device.vendor_device, "1", torch.__version__)


def test_the_table_has_every_kind_and_no_name_twice() -> None:
    names = [case.name for case in cases()]
    assert len(names) == len(set(names)) > 90
    for kind in (
        "gelu 1e6",
        "mm 256",
        "layer_norm 1024x1024",
        "sdpa backward 1x8x512x64",
        "add bfloat16 1e6",
    ):
        assert kind in names


# Saving and comparing ---------------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results = replace(RESULTS, rows=(replace(ADD, fallbacks=("aten::erfinv",), samples=8),))
    results.write(tmp_path / "r.json")
    assert read(tmp_path / "r.json") == results


def test_the_greatest_loss_comes_first() -> None:
    after = replace(
        RESULTS, rows=(replace(ADD, ratio=0.6), replace(ADD, name="mul", ratio=1.0), replace(ADD, name="new"))
    )
    assert changes(RESULTS, after) == [Change("mul", 2.0, 1.0), Change("add", 0.5, 0.6)]


def test_runs_without_a_common_case_are_an_error() -> None:
    with pytest.raises(FlrouteError, match="no case in common: the first has add, mul"):
        changes(RESULTS, replace(RESULTS, rows=(replace(ADD, name="other"),)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "schema version None"),
        ('{"schema_version": 7}', "schema version 7, this flroute reads 1"),
        ('{"schema_version": 1, "rows": [{}]}', "not results of `flroute bench`: KeyError"),
        (
            '{"schema_version": 1, "rows": [{"fallbacks": [], "speed": 1}]}',
            "not results of `flroute bench`: TypeError",
        ),
    ],
)
def test_a_file_that_has_no_results_is_told_before_anything_is_measured(
    text: str | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "run", lambda *_, **__: pytest.fail("measured all the same"))
    path = tmp_path / "r.json"
    if text is not None:
        path.write_text(text)
    done = runner.invoke(app, ["bench", "--op", "relu", "--shape", "4", "--compare", str(path)])
    assert done.exit_code == 2
    assert told in done.output


# The command ------------------------------------------------------------------------------------------------


def test_an_op_from_the_command_line(tmp_path: Path) -> None:
    asked = [
        "bench",
        "--op",
        "aten::where.self",
        "--shape",
        "4x4",
        "--dtype",
        "bool",
        "--dtype",
        "float32",
        "--rounds",
        "1",
    ]
    done = runner.invoke(app, [*asked, "--save", str(tmp_path / "r.json")])
    assert done.exit_code == 0, done.output
    assert "aten::where.self 4x4 4x4 4x4 bool float32" in done.output
    assert read(tmp_path / "r.json").device == "reference:0"
    found = json.loads(runner.invoke(app, [*asked, "--json"]).output)
    assert [row["name"] for row in found["rows"]] == ["aten::where.self 4x4 4x4 4x4 bool float32"]
    assert found["compared"] == []


def test_a_part_of_the_table_from_the_command_line() -> None:
    found = json.loads(
        runner.invoke(
            app, ["bench", "--only", "relu 1e3", "--only", "mm 32", "--rounds", "1", "--json"]
        ).output
    )
    assert {row["name"] for row in found["rows"]} == {"relu 1e3", "mm 32", "addmm 32", "bmm 32"}


def test_a_model_from_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Linear(8, 4), torch.ones(32, 8)\n"
    )
    done = runner.invoke(
        app, ["bench", "--model", f"{tmp_path / 'mine.py'}:make", "--train", "--rounds", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "training step" in done.output
    assert "reference:0 samples/s" in done.output


@pytest.mark.parametrize(("ratio", "code"), [(0.41, 0), (0.39, 1)])
def test_it_exits_with_1_where_a_case_lost_more_than_the_tolerance(
    ratio: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RESULTS.write(tmp_path / "before.json")
    now = replace(RESULTS, rows=(replace(ADD, ratio=ratio),))
    monkeypatch.setattr(measure, "run", lambda *_, **__: now)
    asked = ["bench", "--op", "relu", "--shape", "4", "--compare", str(tmp_path / "before.json")]
    done = runner.invoke(app, asked)
    assert done.exit_code == code
    assert f"{code} of 1 lost more than 20% of their speed" in done.output
    assert ("slower" in done.output) == bool(code)
    compared = json.loads(runner.invoke(app, [*asked, "--json"]).output)["compared"]
    assert compared == [{"name": "add", "before": 0.5, "after": ratio, "regression": bool(code)}]
    assert runner.invoke(app, [*asked, "--tolerance", "0.5"]).exit_code == 0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--op", "relu"], "--op needs at least one --shape"),
        (["--op", "relu", "--shape", "4x"], "write sizes with x between them"),
        (["--op", "relu", "--shape", "4", "--dtype", "floaty"], "PyTorch has no such dtype"),
        (["--op", "relu", "--shape", "4", "--dtype", "nn"], "PyTorch has no such dtype"),
        (["--op", "relu", "--shape", "4", "--arg", "dim"], "write name=value"),
        (["--op", "relu", "--shape", "4", "--device", "nope"], "no vendor named 'nope'"),
        (["--op", "relu", "--shape", "4", "--save", "/nowhere/r.json", "--rounds", "1"], "/nowhere/r.json cannot be written"),
        (["--op", "mm", "--shape", "4x3"], "aten::mm 4x3 4x3 float32: on the host: RuntimeError"),
        (["--op", "relu", "--shape", "4", "--model", "m:f"], "exclude each other"),
        (["--shape", "4"], "--shape, --dtype and --arg belong to --op"),
        (["--train"], "--train belongs to --model"),
        (["--only", "nothing is called so"], "no case of the table contains 'nothing is called so'"),
        (["--model", "torch:get_num_threads"], "must give (model, inputs), it gave int"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_an_error_in_words(asked: list[str], told: str) -> None:
    done = runner.invoke(app, ["bench", *asked])
    assert done.exit_code == 2
    assert told in done.output
    assert "Traceback" not in done.output


# The scripts that are run from a checkout ---------------------------------------------------------------------


SCRIPTS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("script", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_a_script_finds_what_it_imports(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    assert runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="imported")["__doc__"]
