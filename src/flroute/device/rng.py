"""Random numbers on ``fl``.

By default a device has no state of its own: it draws from the host's generator, so that one seed gives one stream
on both and runs can be compared number for number. ``torch.fl.manual_seed`` gives a device its own state, in cuda's
16-byte format: a seed and an offset. Each random op then draws from a host generator seeded from the two, and moves
the offset on.
"""

from __future__ import annotations

import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flroute.device.table import device_count, to_index
from flroute.errors import DeviceError
from flroute.torch_compat import seeding_everything

_STATE = struct.Struct("<QQ")  # seed, offset: CUDAGeneratorImpl.cpp, get_state
_SHARED = 2**64 - 1  # the offset that stands for "draws from the host's generator"
_STEP = 4  # cuda's philox offset moves by 4
_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring offsets give unrelated seeds

_own: dict[int, tuple[int, int]] = {}
_lock = threading.RLock()


def manual_seed(seed: int, device: torch.device | int | str | None = None) -> None:
    """Give a device a random state of its own, seeded with ``seed``."""
    _own[to_index(device)] = (int(seed) % 2**64, 0)


def manual_seed_all(seed: int) -> None:
    """Give every device a state of its own; called by ``torch.manual_seed``, let them follow the host again."""
    if seeding_everything(sys._getframe(1).f_code):
        _own.clear()
        return
    for index in range(device_count()):
        manual_seed(seed, index)


def get_rng_state(device: torch.device | int | str = "fl") -> torch.Tensor:
    """The state of a device: 16 bytes, seed then offset, as a host ``uint8`` tensor."""
    seed, offset = _own.get(to_index(device), (torch.initial_seed() % 2**64, _SHARED))
    return torch.frombuffer(bytearray(_STATE.pack(seed, offset)), dtype=torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: torch.device | int | str = "fl") -> None:
    """Restore a state that ``get_rng_state`` returned.

    Raises:
        DeviceError: the state is not 16 bytes.
    """
    if new_state.dtype != torch.uint8 or new_state.numel() != _STATE.size:
        raise DeviceError(
            f"an fl random state is {_STATE.size} bytes (seed, offset), got {new_state.numel()} elements of "
            f"{new_state.dtype}; pass what torch.fl.get_rng_state() returned"
        )
    seed, offset = _STATE.unpack(bytes(new_state.tolist()))
    if offset == _SHARED:
        _own.pop(to_index(device), None)
    else:
        _own[to_index(device)] = (seed, offset)


def has_own_state(index: int) -> bool:
    """Whether the device left the host's stream through ``manual_seed``."""
    return index in _own


@contextmanager
def device_stream(index: int) -> Iterator[None]:
    """Inside, the host's default generator carries the device's own stream; afterwards it is what it was."""
    with _lock:
        seed, offset = _own[index]
        _own[index] = (seed, offset + _STEP)
        before = torch.get_rng_state()
        torch.default_generator.manual_seed((seed + offset * _MIX) % 2**63)
        try:
            yield
        finally:
            torch.set_rng_state(before)
