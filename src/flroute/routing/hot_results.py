"""What becomes of a kernel's answer on the hot path: what the op returns, or nothing where the kernel wrote itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flroute.device.capsule import tensor_from_array
from flroute.device.table import Device
from flroute.device.tensors import adopt_array, with_dtype
from flroute.routing.schema import OpFacts

Finish = Callable[[Device, tuple[Any, ...], list[Any], Any], Any]
"""Makes what the op returns: takes the device, the call's arguments, their arrays, and the kernel's answer."""

_Array: Any = np.ndarray


def finish_for(facts: OpFacts, *, writes_itself: bool) -> Finish:
    """How a kernel's answer becomes what the op returns; ``writes_itself``: it wrote into its arguments, as the op does."""
    returns = facts.schema.returns
    if facts.written and not writes_itself:
        return _write_first
    if facts.written:
        return _return_first if returns else _return_nothing
    if len(returns) > 1:
        return _return_tuple
    return _return_list if "List" in str(returns[0].type) else _return_one


def _write_first(_device: Device, args: tuple[Any, ...], arrays: list[Any], answer: Any) -> Any:
    np.copyto(arrays[0], answer, casting="unsafe")  # the general path has checked that the dtypes allow it
    return args[0]


def _return_first(_device: Device, args: tuple[Any, ...], _arrays: list[Any], _answer: Any) -> Any:
    return args[0]


def _return_nothing(_device: Device, _args: tuple[Any, ...], _arrays: list[Any], _answer: Any) -> None:
    return None


def _return_one(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return adopt(device, answer)


def _return_tuple(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return tuple([adopt(device, result) for result in answer])


def _return_list(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return [adopt(device, result) for result in answer]


def adopt(device: Device, result: Any) -> torch.Tensor | None:
    """A tensor out of what a kernel returned; row-major, as PyTorch wants every result that comes here."""
    if result.__class__ is _Array and result.flags.carray:
        base = result.base
        if base is None or (base.__class__ is _Array and base.base is None and base.flags.owndata):
            return tensor_from_array(device, result)
    elif isinstance(result, np.generic):
        return tensor_from_array(device, np.array(result))
    return None if result is None else adopt_array(device, np.asarray(result, order="C"))


def _adopt_bits(device: Device, result: Any) -> torch.Tensor | None:
    """Likewise, of a call with bfloat16 among its arguments: 16 bits that numpy has no name for are bfloat16."""
    made = adopt(device, result)
    return with_dtype(made, torch.bfloat16) if made is not None and made.dtype is torch.uint16 else made


def _return_one_of_bits(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return _adopt_bits(device, answer)


def _return_tuple_of_bits(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return tuple([_adopt_bits(device, result) for result in answer])


def _return_list_of_bits(device: Device, _args: tuple[Any, ...], _arrays: list[Any], answer: Any) -> Any:
    return [_adopt_bits(device, result) for result in answer]


WITH_BFLOAT16: dict[Finish, Finish] = {
    _return_first: _return_first,
    _return_nothing: _return_nothing,
    _return_one: _return_one_of_bits,
    _return_tuple: _return_tuple_of_bits,
    _return_list: _return_list_of_bits,
}
"""What finishes a call with bfloat16 among its arguments. Not what writes a result into one: numpy would convert numbers."""
