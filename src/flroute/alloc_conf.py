"""``FLROUTE_ALLOC_CONF``: how devices' pools behave, in the style of ``PYTORCH_CUDA_ALLOC_CONF``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Number: TypeAlias = int | float


@dataclass(frozen=True)
class _Key:
    whole: bool
    holds: Callable[[Number], bool]
    values: str


KEYS: dict[str, _Key] = {
    "max_split_size_mb": _Key(True, lambda n: n >= 1, "MiB, 1 or more"),
    "garbage_collection_threshold": _Key(False, lambda n: 0 < n < 1, "between 0 and 1"),
    "roundup_power2_divisions": _Key(
        True, lambda n: n in (1, 2, 4, 8, 16, 32, 64), "1, 2, 4, 8, 16, 32 or 64"
    ),
    "per_process_memory_fraction": _Key(False, lambda n: 0 < n <= 1, "above 0, at most 1"),
}
"""What may be set, by cuda's name."""

ALLOWED = "key:value with commas between, of " + ", ".join(
    f"{name} ({key.values})" for name, key in KEYS.items()
)


class WrongAllocConfError(ValueError):
    """What is wrong, and the key it is about."""

    def __init__(self, why: str, key: str) -> None:
        super().__init__(why)
        self.key = key


def read(pairs: Mapping[str, object]) -> dict[str, Number]:
    """Checked numbers of a mapping whose values may be texts.

    Raises:
        WrongAllocConfError: an unknown key, or a value it does not take.

    Example:
        >>> read({"max_split_size_mb": "128"})
        {'max_split_size_mb': 128}
    """
    return {name: _number(name, value) for name, value in pairs.items()}


def split(text: str) -> dict[str, str]:
    """The pairs of ``key:value,key:value``.

    Raises:
        WrongAllocConfError: a part without a colon, or a key that is there twice.
    """
    pairs: dict[str, str] = {}
    for part in text.split(","):
        name, colon, value = (word.strip() for word in part.partition(":"))
        if not colon:
            raise WrongAllocConfError(f"{name!r} has no value", name)
        if name in pairs:
            raise WrongAllocConfError(f"{name!r} is there twice", name)
        pairs[name] = value
    return pairs


def _number(name: str, value: object) -> Number:
    key = KEYS.get(name)
    if key is None:
        raise WrongAllocConfError(f"unknown key {name!r}", name)
    try:
        number: Number = int(str(value)) if key.whole else float(str(value))
    except ValueError:
        number = -1
    if not key.holds(number):
        raise WrongAllocConfError(f"{name} takes {key.values}, not {value!r}", name)
    return number
