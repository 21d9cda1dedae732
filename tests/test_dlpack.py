"""DLPack out of the device and into it, and what numpy is told of a device tensor."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch

import flroute

SECOND, OPAQUE = flroute.device("reference:1"), flroute.device("opaque:0")
DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.int8,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("session", [False, True], ids=["outside", "session"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_sees_the_same_memory(dtype: torch.dtype, session: bool) -> None:
    host = torch.arange(24).reshape(4, 6).to(dtype)
    for view in (
        lambda t: t,
        lambda t: t.t(),
        lambda t: t[1:, ::2],
        lambda t: t[2],
        lambda t: t[:0],
        lambda t: t[1, 2],
    ):
        x = host.to(SECOND)
        if session:
            with flroute.enable(SECOND, default_device=False):
                array = np.from_dlpack(view(x), device="cpu")
        else:
            array = np.from_dlpack(view(x), device="cpu")
        assert np.array_equal(array, view(host).numpy())
        x.zero_()
        assert not array.any(), "it is a copy"


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_the_memory_lives_as_long_as_the_array(version: tuple[int, int] | None) -> None:
    gc.collect()
    before = torch.fl.memory_allocated(SECOND)
    x = torch.arange(1000.0, device=SECOND)

    class Producer:
        """What a library asks, and how."""

        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor = tensor

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

        def __dlpack__(self, **kwargs: object) -> object:
            return self.tensor.__dlpack__(dl_device=(1, 0), max_version=version)

    array = np.from_dlpack(Producer(x))
    del x
    gc.collect()
    assert torch.fl.memory_allocated(SECOND) == before + 4000
    assert array[-1] == 999
    del array
    gc.collect()
    assert torch.fl.memory_allocated(SECOND) == before


def test_torch_takes_it_where_it_is() -> None:
    for device in (SECOND, OPAQUE):
        x = torch.zeros(3, device=device)
        for y in (torch.from_dlpack(x), torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x))):
            assert y.device == device
            y.fill_(5)
            assert x.tolist() == [5.0, 5.0, 5.0]
            x.zero_()
        assert tuple(x.__dlpack_device__()) == (12, device.index)
        assert torch.from_dlpack(x, device="cpu").device.type == "cpu"
        assert torch.from_dlpack(x, device="fl:0").device == torch.device("fl:0")


def test_into_the_device() -> None:
    array = np.arange(6.0).reshape(2, 3)
    for device in (SECOND, OPAQUE):
        x = torch.from_dlpack(array, device=device)
        assert x.device == device
        assert x.tolist() == array.tolist()
        assert torch.from_dlpack(torch.ones(2), device=device).device == device
    with pytest.raises(ValueError, match="without copying"):
        torch.from_dlpack(array, device=SECOND, copy=False)


def test_memory_that_the_host_does_not_see() -> None:
    x = torch.arange(4.0).to(OPAQUE)
    copy = np.from_dlpack(x, device="cpu")
    x.zero_()
    assert copy.tolist() == [0.0, 1.0, 2.0, 3.0]
    with pytest.raises(BufferError, match=r"fl:2 \(opaque:0\).*tensor\.cpu\(\)"):
        np.from_dlpack(x, device="cpu", copy=False)


def test_a_copy_is_one_if_asked_for() -> None:
    x = torch.ones(3, device=SECOND)
    array = np.from_dlpack(x, device="cpu", copy=True)
    x.zero_()
    assert array.tolist() == [1.0, 1.0, 1.0]


def test_what_dlpack_cannot_carry_is_refused_as_on_the_host() -> None:
    for make in (
        lambda device: torch.ones(2, device=device, requires_grad=True),
        lambda device: torch.ones(2, dtype=torch.complex64, device=device).conj(),
    ):
        errors = []
        for device in ("cpu", SECOND):
            with pytest.raises(BufferError) as caught:
                make(device).__dlpack__(dl_device=(1, 0))
            errors.append(str(caught.value))
        assert errors[0] == errors[1]
    lazy = torch.ones(2, dtype=torch.complex64, device=SECOND).conj().imag
    assert lazy.is_neg()
    assert np.from_dlpack(lazy, device="cpu").tolist() == [0.0, 0.0]


def test_host_tensors_are_exported_as_before() -> None:
    x = torch.ones(2)
    assert tuple(x.__dlpack_device__()) == (1, 0)
    assert np.shares_memory(np.from_dlpack(x), x.numpy())


@pytest.mark.parametrize("device", [SECOND, OPAQUE], ids=["reference", "opaque"])
@pytest.mark.parametrize(
    "ask",
    [np.asarray, np.array, lambda x: x.numpy(), lambda x: np.add(np.ones(2), x)],
    ids=["asarray", "array", "numpy", "add"],
)
def test_numpy_is_told_to_copy_as_on_cuda(ask: object, device: torch.device) -> None:
    x = torch.ones(2, device=device)
    with pytest.raises(
        TypeError, match=rf"can't convert {device} device type tensor to numpy. Use Tensor.cpu\(\)"
    ):
        ask(x)
    assert x.numpy(force=True).tolist() == x.cpu().numpy().tolist() == [1.0, 1.0]


def test_numpy_does_not_take_device_memory_for_its_own() -> None:
    with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
        np.from_dlpack(torch.ones(2, device=SECOND))
