"""``torch.fl``: the device's module, with the names and manners of ``torch.cuda``."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flroute

REFERENCE, SECOND, OPAQUE = (
    flroute.device("reference:0"),
    flroute.device("reference:1"),
    flroute.device("opaque:0"),
)


@pytest.fixture(autouse=True)
def _current_device_comes_back() -> Iterator[None]:
    before = torch.fl.current_device()
    yield
    torch.fl.set_device(before)


def test_what_torch_cuda_has() -> None:
    """Names that scripts use on any accelerator through ``getattr(torch, device.type)``."""
    for name in (
        "is_available", "device_count", "current_device", "set_device", "device", "synchronize", "manual_seed",
        "manual_seed_all", "get_rng_state", "set_rng_state", "get_device_properties", "get_device_name", "is_initialized",
        "init", "memory_allocated", "max_memory_allocated", "reset_peak_memory_stats", "empty_cache", "get_device_capability",
        "memory_reserved", "memory_stats", "set_per_process_memory_fraction",
    ):  # fmt: skip
        assert callable(getattr(torch.fl, name)), name
        assert hasattr(torch.cuda, name), f"cuda has no {name}"
        assert name in torch.fl.__all__


def test_a_missing_name_says_what_there_is() -> None:
    assert not hasattr(torch.fl, "nope")
    with pytest.raises(AttributeError, match=r"torch\.fl has no 'nope'.*memory_allocated"):
        torch.fl.nope  # noqa: B018 -- the access is what is tested


def test_devices() -> None:
    assert torch.fl.is_available()
    assert torch.fl.device_count() == len(flroute.devices()) >= 4
    assert torch.fl.is_initialized()
    assert torch.get_device_module("fl") is torch.fl
    assert torch.get_device_module(REFERENCE) is torch.fl
    torch.fl.init()
    torch.fl.empty_cache()


def test_current_device() -> None:
    torch.fl.set_device(0)
    assert torch.fl.current_device() == 0
    for device in (1, "fl:1", torch.device("fl:1"), SECOND):
        torch.fl.set_device(0)
        torch.fl.set_device(device)
        assert torch.fl.current_device() == 1
        assert flroute.current_device() == SECOND
    torch.fl.set_device("fl")
    assert torch.fl.current_device() == 1, "a bare fl is the current device"


def test_a_bare_fl_is_the_current_device() -> None:
    host = torch.ones(2)
    with torch.fl.device(1):
        for made in (
            torch.empty(1, device="fl"),
            torch.ones(1, device="fl"),
            torch.tensor([1.0], device="fl"),
            torch.empty_strided((1,), (1,), device="fl"),
            host.to("fl"),
            host.fl(),
            torch.randn(2, device="fl"),
            torch.nn.Linear(2, 2, device="fl").weight,
            torch.nn.Linear(2, 2).to("fl").weight,
        ):
            assert made.device == SECOND
    assert host.to("fl").device == REFERENCE


def test_device_context() -> None:
    assert torch.fl.current_device() == 0
    with torch.fl.device(1):
        with torch.fl.device("fl:2"):
            assert torch.fl.current_device() == 2
            with torch.fl.device(None):
                assert torch.fl.current_device() == 2
            with torch.fl.device(-1):
                assert torch.fl.current_device() == 2
        assert torch.fl.current_device() == 1
    assert torch.fl.current_device() == 0
    with pytest.raises(KeyError), torch.fl.device(1):
        raise KeyError
    assert torch.fl.current_device() == 0
    with torch.fl.device(1):
        torch.fl.set_device(3)
    assert torch.fl.current_device() == 0


def test_the_current_device_is_the_threads_own() -> None:
    seen: list[int] = []
    torch.fl.set_device(1)
    thread = threading.Thread(target=lambda: seen.append(torch.fl.current_device()))
    thread.start()
    thread.join()
    assert seen == [0]


@pytest.mark.parametrize("bad", [99, "fl:99", torch.device("fl:99"), -3])
def test_a_device_that_does_not_exist(bad: Any) -> None:
    before = torch.fl.current_device()
    for call in (
        torch.fl.get_device_properties, torch.fl.get_device_name, torch.fl.synchronize, torch.fl.memory_allocated,
        torch.fl.get_device_capability, torch.fl.reset_peak_memory_stats,
        *([] if bad == -3 else [torch.fl.set_device]),  # which changes nothing then, as cuda's
    ):  # fmt: skip
        with pytest.raises(flroute.DeviceError, match=r"does not exist.*fl:0 \(reference:0\)"):
            call(bad)
    assert torch.fl.current_device() == before


def test_a_tensor_on_a_device_that_does_not_exist() -> None:
    for make in (
        lambda: torch.empty(1, device="fl:99"),
        lambda: torch.ones(1).to("fl:99"),
        lambda: torch.zeros(1).fl(99),
    ):
        with pytest.raises(flroute.DeviceError, match="fl:99 does not exist"):
            make()


@pytest.mark.parametrize("other", ["cpu", "meta", torch.device("cpu")])
def test_a_device_of_another_type(other: Any) -> None:
    with pytest.raises(flroute.DeviceError, match="type 'fl'"):
        torch.fl.set_device(other)


def test_properties() -> None:
    for index, device in enumerate(flroute.devices()):
        properties = torch.fl.get_device_properties(index)
        assert properties.name == torch.fl.get_device_name(index) == device.facts.name
        assert properties.total_memory == device.facts.total_memory > 0
        assert (properties.major, properties.minor) == torch.fl.get_device_capability(index)
        assert properties.vendor == device.vendor
        assert properties.multi_processor_count >= 1
    with torch.fl.device(OPAQUE):
        assert torch.fl.get_device_properties().vendor == "opaque"


@pytest.mark.parametrize("device", [None, 1, "fl:2"])
def test_synchronize(device: int | str | None) -> None:
    with torch.fl.device(0 if device is None else device):
        event = torch.fl.Event()
        event.record()
        torch.fl.synchronize(device)
        assert event.query()


def test_autocast_dtypes() -> None:
    assert set(torch.fl.get_amp_supported_dtype()) == {torch.float16, torch.bfloat16}
    with torch.autocast("fl", torch.bfloat16):
        y = torch.ones(2, 2, device=REFERENCE) @ torch.ones(2, 2, device=REFERENCE)
    assert y.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_a_session_makes_its_device_current() -> None:
    with flroute.enable(SECOND):
        assert torch.fl.current_device() == 1
        assert torch.empty(1, device="fl").device == SECOND
        with flroute.enable(OPAQUE):
            assert torch.fl.current_device() == OPAQUE.index
        assert torch.fl.current_device() == 1
    assert torch.fl.current_device() == 0


def test_methods_on_tensors_and_modules() -> None:
    x = torch.ones(2)
    assert x.fl().device == REFERENCE
    assert x.fl(1).device == SECOND
    assert x.fl().is_fl
    assert not x.is_fl
    assert torch.nn.Linear(1, 1).fl(1).weight.device == SECOND
    assert x.fl().get_device() == 0
    assert x.fl().device.type == "fl"
    assert x.fl().untyped_storage().device == REFERENCE


def test_scripts_that_ask_for_the_accelerator() -> None:
    if torch.cuda.is_available():
        pytest.skip("cuda is the accelerator here")
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("fl")
    assert torch.accelerator.device_count() == torch.fl.device_count()
    torch.fl.set_device(1)
    assert torch.accelerator.current_device_index() == 1


def test_checkpointing_sees_an_initialized_device() -> None:
    """``torch.utils.checkpoint`` saves and restores random states of devices whose module says so."""
    assert torch.fl._initialized


def test_device_of() -> None:
    with torch.fl.device_of(torch.ones(1, device=SECOND)):
        assert torch.fl.current_device() == 1
        with torch.fl.device_of(torch.ones(1)):
            assert torch.fl.current_device() == 1
        with torch.fl.device_of(torch.ones(1, device=OPAQUE).untyped_storage()):
            assert torch.fl.current_device() == OPAQUE.index
    assert torch.fl.current_device() == 0


def test_peers_are_two_devices_of_one_vendor() -> None:
    assert torch.fl.can_device_access_peer(0, 1)
    assert not torch.fl.can_device_access_peer(0, 0)
    assert not torch.fl.can_device_access_peer(REFERENCE, OPAQUE)
    with pytest.raises(flroute.DeviceError, match="fl:99"):
        torch.fl.can_device_access_peer(0, 99)


def test_bfloat16() -> None:
    assert torch.fl.is_bf16_supported()
    assert torch.fl.is_bf16_supported(including_emulation=False)
    with torch.fl.device(OPAQUE):
        assert torch.fl.is_bf16_supported()
        assert not torch.fl.is_bf16_supported(including_emulation=False), "its kernels are for float32"


def test_amp_under_cudas_names() -> None:
    with torch.fl.amp.autocast(dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("fl")
        assert torch.get_autocast_dtype("fl") == torch.bfloat16
    assert not torch.is_autocast_enabled("fl")
    scaler = torch.fl.amp.GradScaler(init_scale=4.0)
    assert scaler.scale(torch.ones(1, device=REFERENCE)).tolist() == [4.0]

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.fl.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_autocast_enabled("fl")
            return x * 2

        @staticmethod
        @torch.fl.amp.custom_bwd
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    with torch.fl.amp.autocast(dtype=torch.bfloat16):
        x = torch.ones(2, device=REFERENCE, dtype=torch.bfloat16, requires_grad=True)
        y = Double.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


def test_a_negative_index_changes_nothing() -> None:
    """As on cuda, whose scripts pass a local rank of -1 where there is but one process."""
    torch.fl.set_device(1)
    torch.fl.set_device(-1)
    torch.accelerator.set_device_index(-1)
    assert torch.fl.current_device() == 1


def test_errors_are_caught_by_cudas_names() -> None:
    assert torch.fl.OutOfMemoryError is torch.fl.memory.OutOfMemoryError is torch.cuda.OutOfMemoryError
    assert torch.fl.AcceleratorError is torch.cuda.AcceleratorError


def test_completion_shows_the_public_names() -> None:
    assert dir(torch.fl) == sorted(torch.fl.__all__)


@pytest.mark.parametrize(
    ("part", "name", "why"),
    [
        ("memory", "MemPool", "flroute.vendor.Memory"),
        ("memory", "_record_memory_history", "torch.fl.memory_snapshot"),
        ("memory", "_dump_snapshot", "torch.fl.memory_snapshot"),
        ("streams", "ExternalStream", "Make torch.fl.Stream"),
        ("amp", "amp_definitely_not_available", "torch.fl.is_available"),
        ("random", "nope", None),
    ],
)
def test_a_part_says_why_too(part: str, name: str, why: str | None) -> None:
    with pytest.raises(
        AttributeError, match=rf"^torch\.fl\.{part} has no '{name}'" + (f": .*{why}" if why else "$")
    ):
        getattr(getattr(torch.fl, part), name)


def test_what_is_refused_says_why() -> None:
    for name, why in (
        ("utilization", "not for sensors"),
        ("CUDAGraph", "torch.compile"),
        ("FloatTensor", "older than torch.dtype"),
        ("default_generators", r"torch\.Generator\(\), the host's"),
        ("caching_allocator_alloc", "take memory as a tensor"),
    ):
        with pytest.raises(AttributeError, match=rf"torch\.fl has no '{name}': .*{why}"):
            getattr(torch.fl, name)
