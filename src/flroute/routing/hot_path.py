"""The hot path: contiguous tensors of one host-visible device, a numpy kernel, one new tensor.

A handler here looks a call up by the dtypes and shapes of its tensors. It finds an entry only once the general path
(``router.py``) has served, and checked, a call with that signature; whatever is unusual goes back to the general path.
No hook, log or lock is touched here, and nothing is formatted: the entry holds the decision's counter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.capsule import tensor_from_array
from flroute.device.dtypes import NUMPY_DTYPES
from flroute.device.table import Device
from flroute.device.tensors import adopt_array
from flroute.errors import Unsupported
from flroute.routing.fallback import calls_kernels
from flroute.routing.schema import OpFacts

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]

MAX_ENTRIES = 4096
"""Signatures kept per op; with more, the table starts anew."""

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_Array: Any = np.ndarray


class Entry(NamedTuple):
    """What serves one signature."""

    function: Callable[..., Any]
    tick: Callable[[], int]
    device: Device
    explain: Callable[[Exception, tuple[Any, ...], dict[str, Any]], None]
    when: Callable[..., bool | str] | None


class HotPath:
    """Entries of one op, and the handler that uses them.

    Args:
        facts: of the op.
        general: the handler for every other call.
    """

    def __init__(self, facts: OpFacts, general: Plan) -> None:
        self._facts = facts
        self._entries: dict[Any, Entry] = {}
        self._short = False
        kinds = [str(a.type) for a in facts.arguments]
        single = len(facts.schema.returns) == 1
        leading = _tensors(kinds) if single else 0
        self.handler: Plan
        self._short = leading > 0
        if leading == 1:
            self.handler = _one_tensor(self._entries, general)
        elif leading == 2:
            self.handler = _two_tensors(self._entries, general)
        else:
            self.handler = _several_tensors(self._entries, general, single)

    def remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry) -> None:
        """Let calls of this signature take the hot path from now on."""
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if kwargs or not all(
            t.__class__ in _PLAIN and t.dtype in NUMPY_DTYPES and t.data_ptr() for t in tensors
        ):
            return
        if self._facts.may_see_conj and any(t.is_complex() for t in tensors):
            return
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        contiguous = all(t.is_contiguous() for t in tensors)
        if contiguous and self._short:
            key: tuple[Any, ...] = tuple(part for t in tensors for part in (t.dtype, t.shape))
        else:
            key = tuple(part for t in tensors for part in (t.dtype, t.shape, t.stride()))
        self._entries[(*key, tensors[0].get_device(), *_settings(args))] = entry


def serves(facts: OpFacts) -> bool:
    """Whether the op has the form the hot path is made for: leading tensors, no list of tensors, only new tensors."""
    kinds = [str(a.type) for a in facts.arguments]
    return (
        kinds[:1] == ["Tensor"]
        and not any("Tensor" in kind and "List" in kind for kind in kinds)
        and all(str(r.type) == "Tensor" for r in facts.schema.returns)
        and not facts.written
        and not facts.may_see_neg
        and not facts.is_seeded
    )


def _settings(args: tuple[Any, ...]) -> list[Any]:
    """The arguments that choose what is computed (dimensions, flags): part of a key. Scalars such as a learning rate are not."""
    return [
        tuple(value) if value.__class__ is list else value
        for value in args
        if value.__class__ not in _PLAIN and value.__class__ is not float
    ]


def _tensors(kinds: list[str]) -> int:
    """1 or 2 if the op takes that many tensors, in front; else 0."""
    count = sum("Tensor" in kind for kind in kinds)
    return count if count <= 2 and kinds[:count] == ["Tensor"] * count else 0


def _one_tensor(entries: dict[Any, Entry], general: Plan) -> Plan:
    dtypes, plain, array, memory, base = NUMPY_DTYPES, _PLAIN, _Array, MEMORY, BASE
    several = _several_tensors(entries, general, single=True)

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        a = args[0]
        if kwargs or a.__class__ not in plain:
            return general(args, kwargs)
        shape, dtype = a.shape, a.dtype
        if len(args) == 1:
            entry = entries.get((dtype, shape, a.get_device()))
        else:
            entry = entries.get((dtype, shape, a.get_device(), *_settings(args)))
        if entry is None or not a.is_contiguous():
            return several(args, kwargs)
        address = a.data_ptr()
        function, tick, device, explain, when = entry
        if not address or (when is not None and when(*args) is not True):
            return general(args, kwargs)
        try:
            result = function(array(shape, dtypes[dtype], memory, address - base), *args[1:])
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        if result.__class__ is array and result.base is None and result.flags.carray:
            return tensor_from_array(device, result)
        return adopt(device, result)

    return calls_kernels(handler)


def _two_tensors(entries: dict[Any, Entry], general: Plan) -> Plan:
    dtypes, plain, array, memory, base = NUMPY_DTYPES, _PLAIN, _Array, MEMORY, BASE
    several = _several_tensors(entries, general, single=True)

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        a, b = args[0], args[1]
        if kwargs or a.__class__ not in plain or b.__class__ not in plain:
            return general(args, kwargs)
        shape, dtype, shape_b, dtype_b, index = a.shape, a.dtype, b.shape, b.dtype, a.get_device()
        if len(args) == 2:
            entry = entries.get((dtype, shape, dtype_b, shape_b, index))
        else:
            entry = entries.get((dtype, shape, dtype_b, shape_b, index, *_settings(args)))
        if entry is None or not (a.is_contiguous() and b.is_contiguous()):
            return several(args, kwargs)
        address, address_b = a.data_ptr(), b.data_ptr()
        function, tick, device, explain, when = entry
        if b.get_device() != index or not (address and address_b):
            return general(args, kwargs)
        if when is not None and when(*args) is not True:
            return general(args, kwargs)
        try:
            result = function(
                array(shape, dtypes[dtype], memory, address - base),
                array(shape_b, dtypes[dtype_b], memory, address_b - base),
                *args[2:],
            )
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        if result.__class__ is array and result.base is None and result.flags.carray:
            return tensor_from_array(device, result)
        return adopt(device, result)

    return calls_kernels(handler)


def _several_tensors(entries: dict[Any, Entry], general: Plan, single: bool) -> Plan:
    dtypes, plain, array, memory, base = NUMPY_DTYPES, _PLAIN, _Array, MEMORY, BASE

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs:
            return general(args, kwargs)
        key: list[Any] = []
        arrays: list[Any] = []
        index = args[0].get_device()
        for value in args:
            if value.__class__ not in plain:
                arrays.append(value)
                continue
            address, dtype, shape = value.data_ptr(), value.dtype, value.shape
            if not address or value.get_device() != index or dtype not in dtypes:
                return general(args, kwargs)
            numpy_dtype, stride = dtypes[dtype], value.stride()
            key += (dtype, shape, stride)
            if value.is_contiguous():
                arrays.append(array(shape, numpy_dtype, memory, address - base))
            else:
                steps = [numpy_dtype.itemsize * step for step in stride]
                arrays.append(array(shape, numpy_dtype, memory, address - base, steps))
        key += (index, *_settings(args))
        entry = entries.get(tuple(key))
        if entry is None:
            return general(args, kwargs)
        function, tick, device, explain, when = entry
        if when is not None and when(*args) is not True:
            return general(args, kwargs)
        try:
            result = function(*arrays)
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        return adopt(device, result) if single else tuple([adopt(device, r) for r in result])

    return calls_kernels(handler)


def adopt(device: Device, result: Any) -> torch.Tensor | None:
    """A tensor out of what a kernel returned; row-major, as PyTorch wants every result that comes here."""
    if result is None:
        return None
    return adopt_array(device, np.asarray(result, order="C"))
