"""Checkpoints across processes, machines and formats; and damaged ones."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import torch as safetensors
from torch import nn

import flroute

DEVICE, SECOND, OPAQUE = torch.device("fl:0"), torch.device("fl:1"), torch.device("fl:2")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(SECOND)


def bytes_of(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


# On a machine without flroute -------------------------------------------------------------------------------------------

WITHOUT_FLROUTE = """
    import sys

    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0].startswith("flroute"):
                raise ImportError(name)

    sys.meta_path.insert(0, Refuse())
    import torch

    path = sys.argv[1]
    checks = {
        "str": torch.load(path, map_location="cpu", weights_only=True),
        "device": torch.load(path, map_location=torch.device("cpu"), weights_only=True),
        "dict": torch.load(path, map_location={"fl:1": "cpu"}, weights_only=True),
        "callable": torch.load(path, map_location=lambda storage, location: storage, weights_only=True),
        "mmap": torch.load(path, map_location="cpu", weights_only=True, mmap=True),
    }
    for name, state in checks.items():
        layer = torch.nn.Linear(3, 2)
        layer.load_state_dict(state["model"])
        optimizer = torch.optim.AdamW(layer.parameters())
        optimizer.load_state_dict(state["optimizer"])
        assert optimizer.state[layer.weight]["exp_avg"].device.type == "cpu", name
        assert state["bits"].dtype == torch.bfloat16 and state["bits"].tolist() == [1.5, -2.0], name
        assert state["conj"].tolist() == [1 - 2j], name
        assert state["view"].untyped_storage().data_ptr() == state["base"].untyped_storage().data_ptr(), name
        assert isinstance(state["parameter"], torch.nn.Parameter), name
    try:
        torch.load(path, weights_only=True)
    except RuntimeError as error:
        assert "tagged with fl:1" in str(error)
    else:
        raise AssertionError("a device that is not there was found")
    assert not [name for name in sys.modules if name.startswith("flroute")]
    print("loaded", *checks)
"""


def test_a_machine_without_flroute_loads_to_the_host(tmp_path: Path) -> None:
    layer = nn.Linear(3, 2).to(SECOND)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3, device=SECOND)).sum().backward()
    optimizer.step()
    base = torch.arange(4.0, device=SECOND)
    state = {
        "model": layer.state_dict(),
        "optimizer": optimizer.state_dict(),
        "bits": torch.tensor([1.5, -2.0], dtype=torch.bfloat16).to(SECOND),
        "conj": torch.tensor([1 + 2j]).to(SECOND).conj(),
        "base": base,
        "view": base[1:],
        "parameter": nn.Parameter(torch.ones(2, device=SECOND)),
    }
    torch.save(state, tmp_path / "state.pt")
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", textwrap.dedent(WITHOUT_FLROUTE), str(tmp_path / "state.pt")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["loaded", "str", "device", "dict", "callable", "mmap"]


# Across devices, and resumed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "fl:0", "fl:1", "fl:2"])
@pytest.mark.parametrize("source", ["cpu", "fl:0", "fl:1", "fl:2"])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
def test_from_every_device_to_every_device(source: str, target: str, mmap: bool, tmp_path: Path) -> None:
    values = torch.arange(6.0).reshape(2, 3)
    torch.save({"x": values.to(source)}, tmp_path / "x.pt")
    x = torch.load(tmp_path / "x.pt", map_location=target, weights_only=True, mmap=mmap)["x"]
    assert x.device == torch.device(target)
    assert torch.equal(x.cpu(), values)


def test_a_callable_chooses_a_device_for_each_storage(model: nn.Module) -> None:
    def place(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        assert location == "fl:1"
        return storage.to(device="fl:0") if storage.nbytes() > 16 else storage

    state = torch.load(io.BytesIO(bytes_of(model.state_dict())), map_location=place, weights_only=True)
    assert {(name, tensor.device.type) for name, tensor in state.items() if "0" in name} == {
        ("0.weight", "fl"),
        ("0.bias", "cpu"),
    }


@pytest.mark.parametrize("location", [None, "cpu"], ids=str)
def test_a_resumed_optimizer_makes_the_same_step(location: str | None, model: nn.Module) -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.arange(12.0).reshape(4, 3).to(SECOND)).square().sum().backward()
        optimizer.step()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    saved = bytes_of({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    step(model, optimizer)

    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(SECOND)
    resumed = torch.optim.AdamW(other.parameters(), lr=0.1)
    state = torch.load(io.BytesIO(saved), map_location=location, weights_only=True)
    other.load_state_dict(state["model"])
    resumed.load_state_dict(state["optimizer"])
    assert resumed.state[other[0].weight]["exp_avg"].device == SECOND
    step(other, resumed)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


# Copies and other processes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [DEVICE, SECOND, OPAQUE], ids=str)
@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, copy.copy, lambda value: pickle.loads(pickle.dumps(value))],
    ids=["deepcopy", "copy", "pickle"],
)
def test_copies_and_pickles(again: Any, device: torch.device) -> None:
    tensor = torch.arange(6.0).to(device).view(2, 3).t()
    back = again(tensor)
    assert (back.device, back.stride()) == (device, tensor.stride())
    assert back.tolist() == tensor.tolist()
    parameter = again(nn.Parameter(tensor))
    assert isinstance(parameter, nn.Parameter)
    assert parameter.device == device
    assert again(device) == device


@pytest.mark.parametrize(
    "again", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["deepcopy", "pickle"]
)
def test_copied_models_keep_ties_and_share_nothing(again: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(DEVICE)
    model[1].weight = model[0].weight
    other = again(model)
    assert other[1].weight is other[0].weight
    with torch.no_grad():
        other[0].weight.zero_()
    assert model[0].weight.abs().sum() > 0


def send(queue: Any, tensor: torch.Tensor) -> None:
    tensor += 1
    queue.put(tensor.sum().item())


def test_another_process_writes_into_a_host_copy() -> None:
    context = torch.multiprocessing.get_context("spawn")
    copied = torch.ones(3, device=DEVICE).cpu().share_memory_()
    queue = context.Queue()
    process = context.Process(target=send, args=(queue, copied))
    process.start()
    assert queue.get(timeout=120) == 6
    process.join()
    assert copied.to(DEVICE).tolist() == [2, 2, 2]


@pytest.mark.parametrize("what", ["tensor", "module"])
def test_device_memory_is_not_sent_to_another_process(what: str) -> None:
    value = torch.ones(3, device=DEVICE) if what == "tensor" else nn.Linear(2, 2).to(DEVICE)
    with pytest.raises(flroute.DeviceError, match=r"fl:0 cannot be sent to another process"):
        torch.multiprocessing.spawn(print, args=(value,), nprocs=1)


# Safetensors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("fl", DEVICE),
        ("fl:1", SECOND),
        ("reference:1", SECOND),
        ("opaque", OPAQUE),
        (SECOND, SECOND),
        (torch.device("fl"), DEVICE),
        ("cpu", torch.device("cpu")),
    ],
    ids=str,
)
def test_safetensors_load_onto_every_device(device: Any, expected: torch.device, tmp_path: Path) -> None:
    state = {
        "a": torch.arange(6.0).reshape(2, 3),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "none": torch.empty(0, 2),
        "number": torch.tensor(7),
    }
    safetensors.save_file(
        {name: tensor.to(SECOND) for name, tensor in state.items()}, tmp_path / "x.safetensors"
    )
    found = flroute.load_file(tmp_path / "x.safetensors", device)
    assert set(found) == set(state)
    for name, tensor in found.items():
        assert (tensor.device, tensor.dtype) == (expected, state[name].dtype)
        assert torch.equal(tensor.cpu(), state[name])
    stock = safetensors.load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(stock[name], tensor) for name, tensor in state.items())


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=4),
    dtype=st.sampled_from(
        [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn]
    ),
)
def test_safetensors_keep_shapes_and_dtypes(
    shapes: list[list[int]], dtype: torch.dtype, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("safetensors") / "x.safetensors"
    state = {str(i): torch.randint(0, 2, shape).to(dtype) for i, shape in enumerate(shapes)}
    safetensors.save_file({name: tensor.to(DEVICE) for name, tensor in state.items()}, path)
    found = flroute.load_file(path)
    assert {name: (t.shape, t.dtype, t.cpu().tolist()) for name, t in found.items()} == {
        name: (t.shape, t.dtype, t.tolist()) for name, t in state.items()
    }


def test_safetensors_in_a_session_are_copies_it_counts(tmp_path: Path) -> None:
    safetensors.save_file({"x": torch.ones(4, device=DEVICE)}, tmp_path / "x.safetensors")
    with flroute.enable("fl:1", fallback="error") as session:
        x = flroute.load_file(tmp_path / "x.safetensors")["x"]
        assert flroute.load_file(tmp_path / "x.safetensors", "cpu")["x"].device.type == "cpu"
        assert x.device == SECOND
        assert x.tolist() == [1, 1, 1, 1]
    assert [d.calls for d in session.decisions if d.route == "copy" and d.device == "cpu->fl:1"] == [1]


def test_safetensors_of_models(model: nn.Module, tmp_path: Path) -> None:
    safetensors.save_model(model, str(tmp_path / "model.safetensors"))
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(DEVICE)
    missing, unexpected = safetensors.load_model(other, tmp_path / "model.safetensors")
    assert not missing
    assert not unexpected
    assert torch.equal(other[0].weight.cpu(), model[0].weight.cpu())
    assert other[0].weight.device == DEVICE


# transformers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device_map", "expected"),
    [("fl", DEVICE), ("fl:1", SECOND), ({"": "fl:1"}, SECOND), (SECOND, SECOND), (None, torch.device("cpu"))],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_transformers_save_and_load(
    device_map: Any,
    expected: torch.device,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=30,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(DEVICE, dtype).eval()
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path, device_map=device_map, dtype=dtype).eval()
    assert {parameter.device for parameter in again.parameters()} == {expected}
    assert again.lm_head.weight is again.model.embed_tokens.weight
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name].cpu(), tensor.cpu()), name
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        ours, theirs = again(tokens.to(expected)).logits, model(tokens.to(DEVICE)).logits
    torch.testing.assert_close(
        ours.cpu(), theirs.cpu(), rtol=1e-2, atol=1e-5 if dtype is torch.float32 else 1e-3
    )


def test_transformers_split_a_model_over_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        vocab_size=30,
        max_position_embeddings=16,
    )
    model = BertModel(config).eval()
    model.save_pretrained(tmp_path)
    parts = {"embeddings": "fl:0", "encoder.layer.0": "fl:0", "encoder.layer.1": "fl:1", "pooler": "fl:1"}
    split = BertModel.from_pretrained(tmp_path, device_map=parts).eval()
    assert {parameter.device for parameter in split.parameters()} == {DEVICE, SECOND}
    tokens = torch.arange(5)[None]
    with torch.no_grad():
        found, expected = split(tokens.to(DEVICE)).pooler_output, model(tokens).pooler_output
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-6)


# Damaged files, and devices that do not exist ---------------------------------------------------------------------------

PLACES = [None, "cpu", "fl", torch.device("fl:1"), {"fl:1": "fl:0"}, lambda storage, location: storage]


@pytest.mark.parametrize("place", PLACES, ids=["None", "str cpu", "str fl", "device", "dict", "callable"])
@pytest.mark.parametrize("mmap", [False, True], ids=["read", "mmap"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.999])
def test_a_truncated_checkpoint(
    place: Any, mmap: bool, part: float, model: nn.Module, tmp_path: Path
) -> None:
    whole = bytes_of(model.state_dict())
    (tmp_path / "cut.pt").write_bytes(whole[: int(len(whole) * part)])
    before = torch.fl.memory_allocated(SECOND), torch.fl.memory_allocated(DEVICE)
    with pytest.raises((RuntimeError, EOFError, pickle.UnpicklingError)):
        torch.load(tmp_path / "cut.pt", map_location=place, weights_only=True, mmap=mmap)
    assert (torch.fl.memory_allocated(SECOND), torch.fl.memory_allocated(DEVICE)) == before


def rewritten(checkpoint: bytes, change: Any) -> io.BytesIO:
    """A checkpoint whose parts are what ``change(name, content)`` makes of them."""
    made = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(checkpoint)) as old,
        zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as new,
    ):
        for name in old.namelist():
            if (content := change(name, old.read(name))) is not None:
                new.writestr(name, content)
    made.seek(0)
    return made


@pytest.mark.parametrize("place", PLACES, ids=["None", "str cpu", "str fl", "device", "dict", "callable"])
@pytest.mark.parametrize(
    "change",
    [
        lambda name, content: None if name.endswith("data/1") else content,
        lambda name, content: content[:-3] if name.endswith("data/0") else content,
        lambda name, content: content[: len(content) // 2] if name.endswith("data.pkl") else content,
        lambda name, content: b"\x80\x02N" + content if name.endswith("data.pkl") else content,
    ],
    ids=["a storage is gone", "a storage is short", "half a pickle", "no end"],
)
def test_a_corrupt_checkpoint(place: Any, change: Any, model: nn.Module) -> None:
    """It fails on the device if it does on the host, with the same error; and gives the same values if it does not."""
    damaged = rewritten(bytes_of(model.state_dict()), change).getvalue()
    of_host = rewritten(bytes_of(model.cpu().state_dict()), change).getvalue()

    def outcome(content: bytes, where: Any) -> Any:
        try:
            state = torch.load(io.BytesIO(content), map_location=where, weights_only=True)
        except Exception as error:
            return type(error)
        return {name: tensor.cpu().tolist() for name, tensor in state.items()}

    assert outcome(damaged, place) == outcome(of_host, "cpu")


def test_a_checkpoint_of_a_device_that_is_not_here() -> None:
    def elsewhere(name: str, content: bytes) -> bytes:
        return content.replace(b"fl:1", b"fl:9") if name.endswith("data.pkl") else content

    saved = bytes_of(torch.ones(2, device=SECOND))
    with pytest.raises(
        flroute.DeviceError, match=r"fl:9 does not exist.*fl:0 \(reference:0\).*map_location='fl'\)"
    ):
        torch.load(rewritten(saved, elsewhere), weights_only=True)
    for place in ("cpu", "fl", {"fl:9": "fl:1"}):
        x = torch.load(rewritten(saved, elsewhere), map_location=place, weights_only=True)
        assert x.tolist() == [1, 1]


@pytest.mark.parametrize(
    "place",
    ["fl:99", torch.device("fl:99"), {"fl:1": "fl:99"}, lambda storage, location: storage.to(device="fl:99")],
    ids=["str", "device", "dict", "callable"],
)
def test_a_place_that_does_not_exist(place: Any) -> None:
    saved = bytes_of(torch.ones(2, device=SECOND))
    with pytest.raises(flroute.DeviceError, match="fl:99 does not exist"):
        torch.load(io.BytesIO(saved), map_location=place, weights_only=True)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x08", struct.pack("<Q", 2**40) + b"{}", struct.pack("<Q", 9) + b"{not json", b"PK\x03\x04" * 10],
    ids=["empty", "one byte", "huge header", "no json", "zip"],
)
def test_what_is_no_safetensors_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(
        flroute.CheckpointError, match=r"x\.safetensors cannot be read as a safetensors file: .*again"
    ):
        flroute.load_file(tmp_path / "x.safetensors")


@pytest.mark.parametrize("cut", [1, 9, 30])
def test_a_truncated_safetensors_file(cut: int, tmp_path: Path) -> None:
    safetensors.save_file({"x": torch.ones(8, device=DEVICE)}, tmp_path / "x.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "x.safetensors").read_bytes()[:-cut])
    with pytest.raises(flroute.CheckpointError, match=r"cut\.safetensors"):
        flroute.load_file(tmp_path / "cut.safetensors", "fl:1")


def test_a_safetensors_header_that_lies(tmp_path: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(flroute.CheckpointError, match=r"x\.safetensors"):
        flroute.load_file(tmp_path / "x.safetensors")


def test_safetensors_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(flroute.FlrouteError, match="pip install safetensors"):
        flroute.load_file("x.safetensors")


def test_places_for_safetensors_that_do_not_exist(tmp_path: Path) -> None:
    safetensors.save_file({"x": torch.ones(8)}, tmp_path / "x.safetensors")
    with pytest.raises(flroute.DeviceError, match="fl:99 does not exist"):
        flroute.load_file(tmp_path / "x.safetensors", "fl:99")
    with pytest.raises(flroute.UnknownVendorError, match="nobody"):
        flroute.load_file(tmp_path / "x.safetensors", "nobody:0")
    with pytest.raises(FileNotFoundError, match="absent"):
        flroute.load_file(tmp_path / "absent.safetensors")
