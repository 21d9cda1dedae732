"""The module that a project keeps, with flroute and without it, and the bridges that people write by hand."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from typer.testing import CliRunner

import flroute
from flroute import bridge
from flroute.cli import app

FL = torch.device("fl:0")
runner = CliRunner()


class Point(NamedTuple):
    x: torch.Tensor
    y: list[torch.Tensor]


@dataclass(frozen=True)
class Frozen:
    image: torch.Tensor
    name: str
    more: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Slotted:
    __slots__ = ("image",)
    image: torch.Tensor


class Encoding(UserDict[str, Any]):
    """As a tokenizer's batch: a mapping that knows how to move, in place."""

    def to(self, device: torch.device) -> Encoding:
        self.data = {key: value.to(device) for key, value in self.items()}
        return self


class Attributes(dict[str, Any]):
    """Answers every attribute, as the dictionaries of configuration libraries do."""

    def __getattr__(self, name: str) -> Any:
        return {} if not name.startswith("__") else super().__getattribute__(name)


def one() -> torch.Tensor:
    return torch.ones(2)


# resolve_device -------------------------------------------------------------------------------------------------------


def test_the_device_is_the_current_one() -> None:
    assert bridge.resolve_device() == FL
    with torch.fl.device(1):
        assert bridge.resolve_device() == torch.device("fl:1")


def test_inside_a_session_it_is_the_sessions() -> None:
    with flroute.enable(device="reference:1"):
        assert bridge.resolve_device() == torch.device("fl:1")
    assert bridge.resolve_device() == FL


@pytest.mark.parametrize(
    ("cuda", "mps", "device", "backend"),
    [
        (True, False, "cuda", "nccl"),
        (True, True, "cuda", "nccl"),
        (False, True, "mps", "gloo"),
        (False, False, "cpu", "gloo"),
    ],
)
def test_without_flroute_it_is_the_first_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, device: str, backend: str
) -> None:
    monkeypatch.setattr(bridge, "flroute", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert bridge.resolve_device() == torch.device(device)
    assert bridge.process_group_backend() == backend


def test_flroute_without_devices_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flroute, "devices", list)
    assert bridge.resolve_device() == torch.device("cpu")


# to_device ------------------------------------------------------------------------------------------------------------


def tensors(obj: Any) -> Iterator[torch.Tensor]:
    """Every tensor in the containers of these tests."""
    if isinstance(obj, torch.Tensor):
        yield obj
    elif isinstance(obj, PackedSequence):
        yield obj.data
    elif isinstance(obj, nn.Module):
        yield from obj.parameters()
    elif isinstance(obj, (dict, UserDict)):
        for value in obj.values():
            yield from tensors(value)
    elif isinstance(obj, (list, tuple, set, frozenset)):
        for item in obj:
            yield from tensors(item)
    elif isinstance(obj, (Frozen, Slotted)):
        yield obj.image
        yield from tensors(getattr(obj, "more", ()))


@pytest.mark.parametrize(
    "make",
    [
        one,
        lambda: nn.Linear(2, 2),
        lambda: [one(), (one(), [one()])],
        lambda: Point(one(), [one()]),
        lambda: {"a": one(), "b": {"c": (one(), 3)}},
        lambda: OrderedDict(a=one()),
        lambda: defaultdict(list, a=[one()]),
        lambda: {one(), "name"},
        lambda: frozenset({one()}),
        lambda: Frozen(one(), "x", [one()]),
        lambda: Slotted(one()),
        lambda: Encoding(ids=one()),
        lambda: UserDict(ids=one()),
        lambda: Attributes(ids=one()),
        lambda: pack_sequence([torch.ones(3), torch.ones(1)]),
        lambda: torch.Size([2, 3]),
    ],
)
def test_every_tensor_moves_and_the_type_stays(make: Any) -> None:
    before = make()
    after = bridge.to_device(before)
    assert type(after) is type(before)
    assert [t.device for t in tensors(after)] == [FL] * len(list(tensors(before)))
    assert all(bool((t.cpu() == u.cpu()).all()) for t, u in zip(tensors(after), tensors(before), strict=True))


@pytest.mark.parametrize(
    "make",
    [lambda: [one()], lambda: {"a": one()}, lambda: Frozen(one(), "x", [one()]), lambda: Slotted(one())],
)
def test_what_was_moved_stays_where_it_was(make: Any) -> None:
    """Modules alone move in place, as ever."""
    before = make()
    bridge.to_device(before)
    assert {t.device.type for t in tensors(before)} == {"cpu"}


@pytest.mark.parametrize("leaf", [3, "text", b"bytes", None, 1.5, torch.float32, torch.Tensor, Frozen, print])
def test_what_holds_no_tensor_is_itself(leaf: object) -> None:
    assert bridge.to_device(leaf) is leaf


def test_it_moves_to_another_device_too() -> None:
    assert bridge.to_device([one().to("fl")], "cpu")[0].device.type == "cpu"
    assert bridge.to_device(one(), torch.device("fl:1")).device == torch.device("fl:1")


def test_a_factory_is_kept() -> None:
    moved = bridge.to_device(defaultdict(list, a=[one()]))
    assert moved["new"] == []


def test_batches_and_outputs_of_transformers_move() -> None:
    """Their mapping refuses ``update``, and is a dataclass beside."""
    from transformers import BatchEncoding
    from transformers.modeling_outputs import BaseModelOutput

    encoding = bridge.to_device(BatchEncoding({"input_ids": one(), "length": 2}))
    assert (encoding["input_ids"].device, encoding["length"]) == (FL, 2)
    output = bridge.to_device(BaseModelOutput(last_hidden_state=one(), hidden_states=(one(), one())))
    assert output.last_hidden_state.device == output["hidden_states"][1].device == FL


# load_model, autocast, process_group_backend --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {"model": state},
        lambda state: {"model_state_dict": {f"module.{name}": value for name, value in state.items()}},
    ],
)
def test_a_model_is_loaded_onto_the_device(tmp_path: Path, wrap: Any) -> None:
    saved = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    torch.save(wrap(saved.state_dict()), tmp_path / "model.pt")
    loaded = bridge.load_model(tmp_path / "model.pt", nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert {value.device for value in loaded.state_dict().values()} == {FL}
    for name, value in saved.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name].cpu(), value, rtol=0, atol=0)


def test_weights_of_another_model_are_pytorchs_error(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "model.pt")
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        bridge.load_model(tmp_path / "model.pt", nn.Linear(4, 2))


@pytest.mark.parametrize(("asked", "given"), [(None, torch.float16), (torch.bfloat16, torch.bfloat16)])
def test_autocast_is_the_devices(asked: torch.dtype | None, given: torch.dtype) -> None:
    linear, x = nn.Linear(2, 2).to(FL), one().to(FL).reshape(1, 2)
    with bridge.autocast(asked):
        assert linear(x).dtype == given
    assert linear(x).dtype == torch.float32


def test_the_process_group_is_flroutes(tmp_path: Path) -> None:
    assert bridge.process_group_backend() == "flroute"
    torch.distributed.init_process_group(
        bridge.process_group_backend(), init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        x = bridge.to_device(one())
        torch.distributed.all_reduce(x)
        assert x.cpu().tolist() == [1, 1]
    finally:
        torch.distributed.destroy_process_group()


# bridges that people write by hand ------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_the_current_device_is_taken_wherever_pytorch_takes_a_device(index: int) -> None:
    with torch.fl.device(index):
        device = torch.fl.current_device()
    expected = torch.device("fl", index)
    assert device == index
    assert f"{device} {device!r} {'%d' % device}" == f"{index} {index} {index}"  # noqa: UP031 -- as people do
    assert torch.device(device) == torch.device("fl", device) == torch.device(f"fl:{device}") == expected
    assert (
        torch.ones(2, device=device).device
        == one().to(device).device
        == one().to(device=device).device
        == expected
    )
    assert nn.Linear(2, 2).to(device).weight.device == expected
    assert torch.fl.get_device_properties(device) == torch.fl.get_device_properties(index)


@pytest.mark.parametrize("weights_only", [True, False])
def test_the_current_device_is_a_map_location(weights_only: bool) -> None:
    """An int is none to PyTorch, and people pass what ``current_device`` gave them."""
    file = io.BytesIO()
    torch.save({"host": one(), "fl": one().to("fl:1"), "shared": [torch.arange(3)] * 2}, file)
    with torch.fl.device(1):
        device = torch.fl.current_device()
    file.seek(0)
    loaded = torch.load(file, map_location=device, weights_only=weights_only)
    assert {t.device for t in (loaded["host"], loaded["fl"], *loaded["shared"])} == {torch.device("fl:1")}
    assert loaded["host"].cpu().tolist() == [1, 1]
    assert loaded["shared"][0].data_ptr() == loaded["shared"][1].data_ptr()


def test_a_compiled_function_takes_the_current_device() -> None:
    @torch.compile(backend="eager")
    def shifted(x: torch.Tensor, device: int) -> torch.Tensor:
        return x + torch.ones(2, device=device) + torch.ones(2, device=torch.fl.current_device())

    assert shifted(one().to(FL), torch.fl.current_device()).cpu().tolist() == [3, 3]


HAND_WRITTEN = """
import torch

def is_available():
    return hasattr(torch, "fl") and torch.fl.is_available()

def get_device():
    return torch.fl.current_device() if is_available() else "cpu"

def load(path, device=None):
    return torch.load(path, map_location=get_device() if device is None else device)

def move(batch):
    return {name: value.to(get_device()) for name, value in batch.items()}
"""


@pytest.mark.parametrize("environment", [{}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}], ids=["with", "without"])
def test_the_common_bridge_works_as_written(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "device.py").write_text(HAND_WRITTEN)
    (tmp_path / "main.py").write_text(
        "import torch, device\n"
        "model = torch.nn.Linear(2, 1).to(device.get_device())\n"
        "torch.save(model.state_dict(), 'model.pt')\n"
        "model.load_state_dict(device.load('model.pt'))\n"
        "out = model(device.move({'x': torch.ones(3, 2)})['x'])\n"
        "out.sum().backward()\n"
        "print(device.is_available(), out.device, device.load('model.pt')['weight'].device)\n"
    )
    shown = subprocess.run(
        [sys.executable, "main.py"],
        cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout.split() == (["False", "cpu", "cpu"] if environment else ["True", "fl:0", "fl:0"])


# the file in a project ------------------------------------------------------------------------------------------------


def test_the_written_file_is_the_packages_own_and_short(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["bridge", "--write", str(tmp_path)])
    assert shown.exit_code == 0
    written = (tmp_path / "bridge.py").read_text()
    assert written == Path(bridge.__file__).read_text() == runner.invoke(app, ["bridge"]).output
    assert len(written.splitlines()) < 60
    assert str(tmp_path / "bridge.py") in shown.output
    for name in ("resolve_device", "to_device", "load_model", "autocast", "process_group_backend"):
        assert name in shown.output
        assert f"def {name}(" in written


def test_another_file_is_written_over_only_by_force(tmp_path: Path) -> None:
    target = tmp_path / "device.py"
    target.write_text("mine\n")
    refused = runner.invoke(app, ["bridge", "--write", str(target)])
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert target.read_text() == "mine\n"
    assert runner.invoke(app, ["bridge", "--write", "--force", str(target)]).exit_code == 0
    assert target.read_text() == Path(bridge.__file__).read_text()
    again = runner.invoke(app, ["bridge", "--write", str(target)])
    assert again.exit_code == 0
    assert "nothing to do" in again.output


def test_a_path_that_cannot_be_is_said(tmp_path: Path) -> None:
    shown = runner.invoke(app, ["bridge", "--write", str(tmp_path / "none" / "bridge.py")])
    assert shown.exit_code == 2
    assert "No such file or directory" in shown.output


def test_by_default_it_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert runner.invoke(app, ["bridge", "--write"]).exit_code == 0
    assert (tmp_path / "bridge.py").is_file()


PROJECT = """
import sys
if sys.argv[1] == "without":
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("flroute", "flroute_autoload"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Absent())
    sys.modules["flroute"] = None

import torch
from bridge import autocast, load_model, process_group_backend, resolve_device, to_device

torch.manual_seed(0)
model = torch.nn.Linear(4, 2).to(resolve_device())
batch = to_device({"x": torch.ones(3, 4), "y": [torch.zeros(3, dtype=torch.long)]})
with autocast(torch.bfloat16):
    loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["y"][0])
loss.backward()
torch.save({"model": model.state_dict()}, "model.pt")
again = load_model("model.pt", torch.nn.Linear(4, 2))
assert torch.equal(again.weight, model.weight)
print(again.weight.device, process_group_backend(), "flroute" in sys.modules and sys.modules["flroute"] is not None)
print(f"{loss.item():.3f}")
"""


def test_a_project_runs_with_flroute_and_without_it(tmp_path: Path) -> None:
    (tmp_path / "project.py").write_text(PROJECT)
    assert runner.invoke(app, ["bridge", "--write", str(tmp_path)]).exit_code == 0
    losses = []
    for which, expected in (("with", "fl:0 flroute True"), ("without", "cpu gloo False")):
        variables = {
            **os.environ,
            "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(which == "with")),
            "CUDA_VISIBLE_DEVICES": "",
        }
        shown = subprocess.run(
            [sys.executable, "project.py", which],
            cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert shown.returncode == 0, shown.stderr
        where, loss = shown.stdout.splitlines()
        assert where == expected
        losses.append(float(loss))
    assert losses[0] == pytest.approx(losses[1], abs=0.01)  # in bfloat16


def test_an_installed_flroute_that_lacks_something_is_no_absent_one(tmp_path: Path) -> None:
    """Going on with the host would hide it."""
    (tmp_path / "flroute").mkdir()
    (tmp_path / "flroute" / "__init__.py").write_text("import a_dependency_that_is_missing")
    runner.invoke(app, ["bridge", "--write", str(tmp_path)])
    shown = subprocess.run(
        [sys.executable, "-c", "import bridge"],
        cwd=tmp_path, env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 1
    assert "a_dependency_that_is_missing" in shown.stderr
