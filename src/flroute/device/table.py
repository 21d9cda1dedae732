"""The devices of this process: which index is whose, and which one is current.

Indices are dealt out once, when the first device is needed, and stay fixed for the life of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

from flroute.device.memory import DeviceFacts, Memory
from flroute.device.streams import Streams
from flroute.errors import DeviceError
from flroute.tables import html_facts, html_part

DEVICE_TYPE = "fl"
DeviceLike: TypeAlias = torch.device | int | str | None


@dataclass(slots=True)
class MemoryStats:
    """Bytes of live tensors on one device. Every update is one statement, which CPython does not interrupt.

    Attributes:
        allocated: now.
        peak: the most at once.
        refused: how often there was no memory.
    """

    allocated: int = 0
    peak: int = 0
    refused: int = 0


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        index: 0 for ``fl:0``.
        vendor: name of the vendor it belongs to.
        vendor_index: the vendor's own index.
        facts: name, memory and the like.
        memory: how its memory works.
        streams: how its streams and events work.
        stats: bytes in use.
    """

    index: int
    vendor: str
    vendor_index: int
    facts: DeviceFacts
    memory: Memory = field(repr=False)
    streams: Streams = field(repr=False, default_factory=Streams)
    stats: MemoryStats = field(repr=False, default_factory=MemoryStats)

    @property
    def name(self) -> str:
        """PyTorch's name, ``fl:0``."""
        return f"{DEVICE_TYPE}:{self.index}"

    @property
    def vendor_device(self) -> str:
        """The vendor's name for it, ``reference:0``."""
        return f"{self.vendor}:{self.vendor_index}"

    @property
    def torch_device(self) -> torch.device:
        """As PyTorch knows it, which has to be told of ``fl`` first.

        Raises:
            CompatibilityError: another package holds PyTorch's slot for out-of-tree devices.
        """
        if _activate is not None:
            _activate()
        return torch.device(DEVICE_TYPE, self.index)

    def _repr_html_(self) -> str:
        """For a notebook: what it is, and how much of its memory is in use."""
        memory = f"{self.stats.allocated:,} of {self.facts.total_memory:,} bytes in use"
        facts = {
            "device": self.name,
            "vendor's name": self.vendor_device,
            "product": self.facts.name,
            "memory": memory,
            "cores": self.facts.multi_processor_count,
        }
        return html_part(html_facts(facts))


_source: Callable[[], Sequence[Device]] | None = None
_activate: Callable[[], None] | None = None
_devices: tuple[Device, ...] | None = None
_lock = threading.RLock()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.index = 0
        self.claims: list[list[int]] = []  # each holds the index to come back to, the innermost is last


_current = _Thread()


def set_source(source: Callable[[], Sequence[Device]]) -> None:
    """Say where devices come from; the registry calls this when it is imported."""
    global _source
    _source = source


def set_activation(activate: Callable[[], None]) -> None:
    """Say how ``fl`` is registered with PyTorch; ``activation.py`` calls this when it is imported."""
    global _activate
    _activate = activate


def devices() -> tuple[Device, ...]:
    """All devices, in index order. The first call loads the vendors."""
    global _devices
    if _devices is None:
        with _lock:
            if _devices is None:
                _devices = tuple(_source()) if _source is not None else ()
    return _devices


def append(more: Sequence[Device]) -> tuple[Device, ...]:
    """Number more devices after those there are."""
    global _devices
    with _lock:
        _devices = (*devices(), *more)
    return tuple(more)


def device_at(index: int) -> Device:
    """The device with this index.

    Raises:
        DeviceError: there is none; the message lists those there are.
    """
    known = devices()
    if 0 <= index < len(known):
        return known[index]
    listing = ", ".join(f"{d.name} ({d.vendor_device})" for d in known) or "none: no vendor brings a device"
    raise DeviceError(f"device {DEVICE_TYPE}:{index} does not exist. Devices in this process: {listing}")


def device_count() -> int:
    """How many devices there are."""
    return len(devices())


def current_index() -> int:
    """Index of this thread's current device, which a bare ``"fl"`` means."""
    return _current.index


def set_current_index(index: int) -> None:
    """Make a device current in this thread.

    Raises:
        DeviceError: no such device.
    """
    if index:
        device_at(index)
    _current.index = index


def push_current(index: int) -> list[int]:
    """Make a device current in this thread until ``pop_current`` is called with what this returns.

    Raises:
        DeviceError: no such device.
    """
    claim = [current_index()]
    set_current_index(index)
    _current.claims.append(claim)
    return claim


def pop_current(claim: list[int]) -> None:
    """End a claim, in any order: the device before it comes back once all that were made after it have ended, too."""
    claims = _current.claims
    at = next((i for i, other in enumerate(claims) if other is claim), None)
    if at is None:  # made in another thread, whose business it is
        return
    del claims[at]
    if at == len(claims):
        set_current_index(claim[0])
    else:
        claims[at][0] = claim[0]


def to_index(device: DeviceLike) -> int:
    """The index a device argument means; ``None`` and a bare ``"fl"`` mean the current device.

    Raises:
        DeviceError: the device is of another type or does not exist.
    """
    if device is None:
        return current_index()
    if isinstance(device, int):
        return device_at(device).index
    device = torch.device(device)
    if device.type != DEVICE_TYPE:
        raise DeviceError(f"expected a device of type {DEVICE_TYPE!r}, got {str(device)!r}")
    return current_index() if device.index is None else device_at(device.index).index
