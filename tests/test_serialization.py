"""``torch.save`` and ``torch.load`` of device tensors."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import flroute
from flroute.device import serialization

HOST, DEVICE, SECOND = torch.device("cpu"), torch.device("fl:0"), torch.device("fl:1")


def saved(value: Any, **options: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


def loaded(value: Any, map_location: Any = None, **options: Any) -> Any:
    return torch.load(saved(value), map_location=map_location, weights_only=True, **options)


MAP_LOCATIONS: dict[str, tuple[Any, torch.device]] = {
    "None": (None, SECOND),
    "cpu": ("cpu", HOST),
    "fl": ("fl", DEVICE),
    "fl:0": ("fl:0", DEVICE),
    "fl:1": ("fl:1", SECOND),
    "torch.device": (torch.device("fl:1"), SECOND),
    "bare torch.device": (torch.device("fl"), DEVICE),
    "host torch.device": (HOST, HOST),
    "dict": ({"fl:1": "fl:0"}, DEVICE),
    "dict to host": ({"fl:1": "cpu"}, HOST),
    "dict of others": ({"cuda:0": "cpu"}, SECOND),
    "callable to a storage": (lambda storage, location: storage, HOST),
    "callable to nothing": (lambda storage, location: None, SECOND),
    "callable that moves": (lambda storage, location: storage.fl(0), DEVICE),
    "meta": ("meta", torch.device("meta")),
}


@pytest.mark.parametrize("name", MAP_LOCATIONS)
def test_every_map_location(name: str) -> None:
    map_location, expected = MAP_LOCATIONS[name]
    values = torch.arange(6.0).reshape(2, 3)
    back = loaded({"x": values.to("fl:1")}, map_location)["x"]
    assert back.device == expected
    if expected.type != "meta":
        assert torch.equal(back.cpu(), values)


@pytest.mark.parametrize("map_location", ["fl", "fl:1", {"cpu": "fl:1"}], ids=str)
def test_host_checkpoints_load_onto_the_device(map_location: Any, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    state = torch.load(tmp_path / "weights.pt", map_location=map_location)
    assert {t.device for t in state.values()} == {DEVICE if map_location == "fl" else SECOND}
    torch.testing.assert_close(
        {k: v.cpu() for k, v in state.items()}, dict(module.state_dict()), rtol=0, atol=0
    )


def test_a_bare_fl_is_the_current_device() -> None:
    with torch.fl.device(1):
        assert loaded(torch.ones(2), "fl").device == SECOND


def test_memory_mapped_checkpoints(tmp_path: Path) -> None:
    torch.save({"x": torch.arange(4.0)}, tmp_path / "weights.pt")
    x = torch.load(tmp_path / "weights.pt", map_location="fl:1", mmap=True)["x"]
    assert x.device == SECOND
    assert x.add_(1).tolist() == [1, 2, 3, 4]
    assert torch.load(tmp_path / "weights.pt")["x"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("map_location", [None, "fl:0", "cpu"], ids=str)
def test_the_older_file_format(map_location: Any) -> None:
    values = torch.arange(6.0)
    there = values.to("fl:1")
    buffer = saved({"x": there, "y": there[2:]}, _use_new_zipfile_serialization=False)
    back = torch.load(buffer, map_location=map_location, weights_only=True)
    assert back["x"].device == {None: SECOND, "fl:0": DEVICE, "cpu": HOST}[map_location]
    assert torch.equal(back["x"].cpu(), values)
    back["x"].zero_()
    assert back["y"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("map_location", [None, "fl:0", "cpu"], ids=str)
def test_tensors_that_share_a_storage_still_do(map_location: Any) -> None:
    base = torch.arange(12.0, device="fl:1")
    view = base.view(3, 4)[1:, 1:].t()
    back_base, back_view = loaded([base, view], map_location)
    assert back_view.stride() == view.stride()
    assert back_view.storage_offset() == view.storage_offset()
    assert back_view.untyped_storage().data_ptr() == back_base.untyped_storage().data_ptr()
    back_base.zero_()
    assert back_view.cpu().sum() == 0


DTYPES = [torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool, torch.float8_e4m3fn]


@settings(max_examples=30, deadline=None)
@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=3),
    data=st.data(),
    dtype=st.sampled_from(DTYPES),
)
def test_shapes_strides_offsets_and_dtypes_survive(
    shape: list[int], data: st.DataObject, dtype: torch.dtype
) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    offset = data.draw(st.integers(0, 3))
    strides, step = [0] * len(shape), 2
    for axis in order:
        strides[axis], step = step, step * max(shape[axis], 1)
    host = torch.randint(0, 2, (offset + step,)).to(dtype)
    there = host.to("fl:1").as_strided(shape, strides, offset)
    back = loaded(there)
    assert (back.device, back.dtype, back.shape) == (SECOND, dtype, there.shape)
    assert (back.stride(), back.storage_offset()) == (there.stride(), there.storage_offset())
    assert back.cpu().flatten().tolist() == host.as_strided(shape, strides, offset).flatten().tolist()


def test_lazy_bits_survive() -> None:
    x = torch.tensor([1 + 2j, 3 - 4j], device="fl:1")
    assert loaded(x.conj()).tolist() == [1 - 2j, 3 + 4j]
    assert loaded(x.conj().imag).tolist() == [-2, 4]


def test_modules_parameters_and_optimizers() -> None:
    module = nn.Linear(3, 2).to("fl:1")
    module.bias.requires_grad_(False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(torch.ones(1, 3, device="fl:1")).sum().backward()
    optimizer.step()

    whole = torch.load(saved(module), weights_only=False)
    assert isinstance(whole.weight, nn.Parameter)
    assert whole.weight.device == SECOND
    assert (whole.weight.requires_grad, whole.bias.requires_grad) == (True, False)
    assert torch.equal(whole.weight.cpu(), module.weight.cpu())

    state = loaded(optimizer.state_dict())["state"][0]
    assert state["exp_avg"].device == SECOND
    assert torch.equal(state["exp_avg"].cpu(), optimizer.state[module.weight]["exp_avg"].cpu())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # PyTorch wraps a storage it loads in one
def test_storages_can_be_saved_and_copied() -> None:
    storage = torch.arange(4, dtype=torch.uint8, device="fl:1").untyped_storage()
    for back in (torch.load(saved(storage), weights_only=False), copy.deepcopy(storage)):
        assert back.device == SECOND
        assert back.data_ptr() != storage.data_ptr()
        assert back.cpu().tolist() == [0, 1, 2, 3]


def test_loading_copies_and_each_load_is_its_own() -> None:
    buffer = saved(torch.ones(3, device="fl"))
    first = torch.load(buffer)
    first.zero_()
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [1, 1, 1]


@pytest.mark.parametrize("map_location", ["fl:99", torch.device("fl:99"), {"cpu": "fl:99"}], ids=str)
def test_a_device_that_does_not_exist(map_location: Any) -> None:
    with pytest.raises(flroute.DeviceError, match=r"fl:99 does not exist.*fl:0 \(reference:0\).*fl:1"):
        loaded(torch.ones(2), map_location)


def test_other_locations_are_not_ours() -> None:
    with pytest.raises(RuntimeError, match="flower"):
        loaded(torch.ones(2), "flower")


def test_inside_a_session() -> None:
    with flroute.enable(device="fl:1", fallback="allow"):
        x = torch.ones(3) * 2
        assert loaded({"x": x})["x"].tolist() == [2, 2, 2]
        assert loaded({"x": x}, "cpu")["x"].device == HOST
    with flroute.enable(device="fl:1", fallback="error", default_device=False) as session:
        y = loaded({"y": torch.ones(1000)}, "fl:1")["y"]
    (copied,) = [d for d in session.decisions if d.route == "copy"]
    assert (y.device, copied.device, copied.calls, copied.bytes_to_device) == (
        SECOND,
        "cpu->fl:1",
        1,
        y.nbytes,
    )


def test_installing_twice_registers_once() -> None:
    assert serialization.installed()
    before = len(torch.serialization._package_registry)
    serialization.install()
    assert len(torch.serialization._package_registry) == before
