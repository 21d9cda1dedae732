"""The types of the days before ``torch.dtype``: ``torch.cuda.FloatTensor`` and its kin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flroute.cuda_alias.ordinals import ALIAS
from flroute.device.table import DEVICE_TYPE

if TYPE_CHECKING:
    from flroute.cuda_alias.alias import Alias

DTYPES: dict[str, torch.dtype] = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}
_PREFIX = f"torch.{ALIAS}."


class CudaTensorType(type):
    """The type of stand-ins for them: called they make a tensor, and a tensor of that dtype on a device is an instance."""

    dtype: torch.dtype

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        """A tensor of these sizes, or with these values."""
        alias: Alias = cls.current()  # type: ignore[attr-defined]
        device = alias.ordinals.device(kwargs.get("device", ALIAS))
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        if all(isinstance(size, int) for size in sizes):
            return torch.empty(
                sizes or 0, dtype=cls.dtype, device=device
            )  # without arguments it has no elements
        return torch.tensor(args[0], dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == DEVICE_TYPE
            and instance.dtype is cls.dtype
        )


def stand_in(name: str, current: Any) -> type:
    """For ``torch.cuda.<name>``; ``current()`` is the alias in force."""
    names = {"dtype": DTYPES[name], "current": staticmethod(current), "__module__": f"torch.{ALIAS}"}
    return CudaTensorType(name, (), names)


def dtype_of(asked: Any) -> torch.dtype | None:
    """What ``"torch.cuda.FloatTensor"``, or the type, says of elements; ``None`` for any other argument."""
    if isinstance(asked, CudaTensorType):
        return asked.dtype
    if isinstance(asked, str) and asked.startswith(_PREFIX):
        return DTYPES.get(asked.removeprefix(_PREFIX))
    return None


def type_name(name: str) -> str:
    """``torch.cuda.FloatTensor`` for ``torch.fl.FloatTensor``."""
    return name.replace(f"torch.{DEVICE_TYPE}.", _PREFIX)
