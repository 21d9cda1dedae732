"""Random numbers on ``fl``.

By default a device has no state of its own: it draws from the host's generator, so that one seed gives one stream
on both and runs can be compared number for number. ``torch.fl.manual_seed`` gives a device its own state, in cuda's
16-byte format: a seed and an offset. Each random op then draws from a host generator seeded from the two, and moves
the offset on.
"""

from __future__ import annotations

import secrets
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from flroute.device.table import DeviceLike, device_count, to_index
from flroute.errors import DeviceError
from flroute.torch_compat import counts_offsets, seeding_everything

_STATE = struct.Struct("<QQ")  # seed, offset: CUDAGeneratorImpl.cpp, get_state
_SHARED = 2**64 - 1  # the offset that stands for "draws from the host's generator"
_STEP = 4  # cuda's philox offset moves by 4
_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: neighbouring offsets give unrelated seeds

_own: dict[int, tuple[int, int]] = {}
_lock = threading.RLock()


def manual_seed(seed: int, device: DeviceLike = None) -> None:
    """Give a device a random state of its own, seeded with ``seed``.

    Raises:
        ValueError: PyTorch takes no such seed.
    """
    seed = int(seed)
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed is at least -2**63 and less than 2**64, not {seed}")
    _own[to_index(device)] = (seed % 2**64, 0)


def manual_seed_all(seed: int) -> None:
    """Give every device a state of its own; called by ``torch.manual_seed``, let them follow the host again."""
    if seeding_everything(sys._getframe(1).f_code):
        _own.clear()
        return
    for index in range(device_count()):
        manual_seed(seed, index)


def get_rng_state(device: torch.device | int | str = "fl") -> torch.Tensor:
    """The state of a device: 16 bytes, seed then offset, as a host ``uint8`` tensor.

    A device that draws from the host's stream has no offset of its own. DTensor, which moves offsets so that each rank draws its
    part of one stream, gives it one: the host's seed, from the beginning.
    """
    index = to_index(device)
    if index not in _own and counts_offsets(sys._getframe(1).f_code):
        manual_seed(torch.initial_seed(), index)
    seed, offset = _own.get(index, (torch.initial_seed() % 2**64, _SHARED))
    return torch.frombuffer(bytearray(_STATE.pack(seed, offset)), dtype=torch.uint8)


def set_rng_state(new_state: torch.Tensor, device: torch.device | int | str = "fl") -> None:
    """Restore a state that ``get_rng_state`` returned.

    Raises:
        DeviceError: the state is not 16 bytes.
    """
    _restore(to_index(device), _unpacked(new_state))


def _unpacked(state: torch.Tensor) -> tuple[int, int]:
    is_one = isinstance(state, torch.Tensor) and state.dtype == torch.uint8 and state.numel() == _STATE.size
    if not is_one:
        given = (
            f"{state.numel()} elements of {state.dtype}" if isinstance(state, torch.Tensor) else repr(state)
        )
        raise DeviceError(
            f"an fl random state is {_STATE.size} bytes (seed, offset), got {given}; pass what torch.fl.get_rng_state() returned"
        )
    seed, offset = _STATE.unpack(bytes(state.tolist()))
    return seed, offset


def _restore(index: int, pair: tuple[int, int]) -> None:
    if pair[1] == _SHARED:
        _own.pop(index, None)
    else:
        _own[index] = pair


def get_rng_state_all() -> list[torch.Tensor]:
    """The state of every device, in index order."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Sequence[torch.Tensor]) -> None:
    """Restore what ``get_rng_state_all`` returned; none is restored if one is wrong.

    Raises:
        DeviceError: there are more states than devices, or one is not 16 bytes.
    """
    if len(new_states) > device_count():
        raise DeviceError(
            f"{len(new_states)} random states for {device_count()} devices: they were saved where there were more; "
            "restore those there are with torch.fl.set_rng_state(state, index)"
        )
    pairs = [_unpacked(state) for state in new_states]
    for index, pair in enumerate(pairs):
        _restore(index, pair)


def seed() -> None:
    """Give the current device a state of its own with a seed from the system."""
    manual_seed(secrets.randbits(63))


def seed_all() -> None:
    """Give every device a state of its own, all with one seed from the system."""
    manual_seed_all(secrets.randbits(63))


def initial_seed() -> int:
    """The current device's seed; the host's while it draws from the host's stream."""
    return initial_seed_at(to_index(None))


def initial_seed_at(index: int) -> int:
    """The seed of one device."""
    own = _own.get(index)
    return torch.initial_seed() if own is None else own[0]


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
