"""What several test files share: throw-away vendors, and questions to a session."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from flroute import Decision, Session, enable, registry
from flroute.device import table
from flroute.device.table import Device
from flroute.reference_vendor.triton_cpu import VersionError
from flroute.routers import process_router
from flroute.vendor import DeviceFacts, HostMemory, Kernel, Memory, Vendor, hookimpl

_numbers = itertools.count()


class Plugin:
    """A vendor plugin made on the spot.

    Args:
        vendors: what the hook ``flroute_vendors`` yields.
    """

    def __init__(self, *vendors: Any) -> None:
        self.vendors = vendors

    @hookimpl
    def flroute_vendors(self) -> Iterator[Any]:
        yield from self.vendors


@dataclass(frozen=True)
class Made:
    """A vendor that a test registered; ``device`` is its first device."""

    name: str
    devices: tuple[Device, ...]

    @property
    def device(self) -> torch.device:
        return self.devices[0].torch_device

    def put(self, host: torch.Tensor) -> torch.Tensor:
        """``host`` on the first device, with its strides."""
        return host.to(self.device)


WithoutKernels = Callable[..., None]
"""Takes the ops whose kernels the reference vendor is to lose, until the test ends."""


def needs_triton() -> None:
    """Skip what compiles kernels where what compiles them is not installed, or is a Triton that flroute refuses by name.

    Which Triton there is, a PyTorch for cuda decides: 2.11 asks for 3.6.
    """
    pytest.importorskip("triton")
    pytest.importorskip("llvmlite")
    pytest.importorskip("flroute.reference_vendor.triton_cpu.backend", exc_type=VersionError)


def cuda_session() -> Iterator[Session]:
    """A fixture once a test file says ``session = pytest.fixture(cuda_session)``: cuda means the device, and nothing falls back."""
    with enable(alias=("cuda",), fallback="error") as opened:
        yield opened


def redirected_names(session: Session) -> set[str]:
    """What was redirected, without lines and counts."""
    return {use.name for use in session.redirected}


def allow_global_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own test modules forbid ``torch.backends.cudnn.benchmark = True`` for the whole process once they are imported."""
    monkeypatch.setattr("torch.backends.__allow_nonbracketed_mutation_flag", True)


class Vendors:
    """Registers plugins in the running process, and takes them out again at the end of a test."""

    def __init__(self) -> None:
        self._plugins: list[object] = []
        self._names: list[str] = []
        self._devices = table.devices()

    def __call__(
        self, *kernels: Kernel, devices: int = 2, memory: Memory | None = None, name: str | None = None
    ) -> Made:
        """A vendor with a name of its own and these kernels."""
        name = name or unique("maker")
        vendor = make_vendor_object(name, *kernels, devices=devices, memory=memory)
        return Made(name, self.register(Plugin(vendor), name))

    def register(self, plugin: object, name: str | None = None) -> tuple[Device, ...]:
        """Register any plugin."""
        before = set(registry.load().vendors)
        devices = registry.register(plugin, name or unique("plugin"))
        self._plugins.append(plugin)
        self._names += set(registry.load().vendors) - before
        return devices

    def forget(self) -> None:
        """Take everything out, the device indices too: PyTorch has only 128."""
        found = registry.load()
        for plugin in self._plugins:
            found.manager.unregister(plugin)
        for name in self._names:
            found.vendors.pop(name, None)
            found.kernels.pop(name, None)
        table._devices = self._devices
        process_router().invalidate()


def throw_away_vendors() -> Iterator[Vendors]:
    """A fixture once a test file says ``vendors = pytest.fixture(throw_away_vendors)``."""
    made = Vendors()
    yield made
    made.forget()


def unique(stem: str) -> str:
    """A name no other test has."""
    return f"{stem}_{next(_numbers)}"


def make_vendor_object(name: str, *kernels: Kernel, devices: int = 2, memory: Memory | None = None) -> Vendor:
    """A vendor that is not registered yet."""
    return Vendor(
        name=name,
        version="1",
        devices=tuple(DeviceFacts(f"{name} {i}", total_memory=2**30) for i in range(devices)),
        memory=memory or HostMemory(),
        kernels=kernels,
    )


def _copy(target: Any, source: Any, non_blocking: Any = False) -> None:
    target[...] = source


COPY = Kernel("aten::copy_", _copy)
"""With it a vendor can store results in any layout without the host."""


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under another name: kernels are known by their function's."""
    function.__name__ = name
    return function


def decisions_of(session: Session, op: str) -> list[Decision]:
    """The decisions on one op; calls on host tensors, which tests make to compare with, are left out."""
    return [decision for decision in session.decisions if decision.op == op and decision.route != "host"]


def decision_of(session: Session, op: str) -> Decision:
    """The only decision on one op."""
    (decision,) = decisions_of(session, op)
    return decision


def why_rejected(decision: Decision) -> list[tuple[str, str]]:
    """Each rejected candidate's function name and reason code."""
    return [(r.kernel.rpartition(":")[2], str(r.reason)) for r in decision.rejected]
