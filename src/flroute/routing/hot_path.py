"""The hot path: tensors of one host-visible device, a numpy kernel, and a signature that was served and checked before.

A handler here looks a call up by the dtypes, shapes and strides of its tensors and by its other arguments. It finds an entry
only once the general path (``plans.py``) has served, and checked, a call with that signature; whatever is unusual goes back to
the general path. No hook, log or lock is touched here, and nothing is formatted: the entry holds the decision's counter.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from flroute.device.address_space import BASE, MEMORY
from flroute.device.dtypes import NUMPY_CARRIERS, NUMPY_DTYPES
from flroute.device.table import Device
from flroute.errors import Unsupported
from flroute.routing.fallback import calls_kernels
from flroute.routing.hot_results import WITH_BFLOAT16, Finish, adopt
from flroute.routing.results import speaks_of_bfloat16
from flroute.routing.schema import OpFacts, tensors_in

Plan = Callable[[tuple[Any, ...], dict[str, Any]], Any]
MAX_ENTRIES = 4096
"""Signatures kept per op; with more, the table starts anew."""

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_Array: Any = np.ndarray
_share_memory: Callable[[Any, Any], bool] = np.may_share_memory
# A list's tensors are asked by `map`, without a loop in Python.
_get_device, _is_contiguous, _data_ptr, _stride = (
    torch.Tensor.get_device,
    torch.Tensor.is_contiguous,
    torch.Tensor.data_ptr,
    torch.Tensor.stride,
)
_dtype_and_shape = attrgetter("dtype", "shape")


class Entry(NamedTuple):
    """What serves one signature."""

    function: Callable[..., Any]
    tick: Callable[[], int]
    device: Device
    explain: Callable[[Exception, tuple[Any, ...], dict[str, Any]], None]
    when: Callable[..., bool | str] | None
    finish: Finish
    layouts: tuple[Any, ...] = ()
    """For each argument: shape, numpy dtype and strides in bytes of a tensor, or those of a list's tensors, or ``None``."""


class HotPath:
    """Entries of one op. It holds no handler, as plans hold it: a cycle would keep all of a session until a garbage collection.

    Args:
        facts: of the op.
    """

    def __init__(self, facts: OpFacts) -> None:
        self._facts = facts
        self._entries: dict[Any, Entry] = {}
        self._with_bfloat16: dict[Any, Entry] = {}

    def handler(self, general: Plan) -> Plan:
        """The handler that uses the entries; ``general`` is the one for every other call."""
        facts = self._facts
        any_form = _any_form(self._entries, self._with_bfloat16, general, facts)
        kinds = [str(a.type) for a in facts.arguments]
        if not facts.written and not facts.may_see_neg and len(facts.schema.returns) == 1:
            if _leading_tensors(kinds) == 1:
                return _one_tensor(self._entries, general, any_form)
            if _leading_tensors(kinds) == 2:
                return _two_tensors(self._entries, general, any_form)
        return any_form

    def remember(self, args: tuple[Any, ...], kwargs: dict[str, Any], entry: Entry) -> None:
        """Let calls of this signature take the hot path from now on."""
        may_be_lazy = self._facts.may_see_conj or bool(self._facts.written)
        if may_be_lazy and any(t.is_complex() for t in tensors_in(args, kwargs)):
            return
        key, entries = _key(args, kwargs), self._entries
        dtypes = {t.dtype for t in tensors_in(args, {})}
        if speaks_of_bfloat16(args, kwargs) and entry.finish in WITH_BFLOAT16:
            entries, entry = self._with_bfloat16, entry._replace(finish=WITH_BFLOAT16[entry.finish])
            dtypes.discard(torch.bfloat16)
        if key is None or not dtypes <= NUMPY_DTYPES.keys():
            return
        if len(entries) >= MAX_ENTRIES:
            entries.clear()
        entries[key] = entry._replace(layouts=tuple(map(_layout, args)))


def serves(facts: OpFacts) -> bool:
    """Whether the op has a form the hot path is made for.

    Tensors or plain lists of tensors, the first in front; results that are all new, or an op that writes to its first
    argument and returns that or nothing.
    """
    kinds = [str(a.type) for a in facts.arguments]
    lists = [kind for kind in kinds if "List" in kind and "Tensor" in kind]
    if not kinds or kinds[0] not in ("Tensor", "List[Tensor]") or any(k != "List[Tensor]" for k in lists):
        return False
    if facts.is_seeded:
        return False
    returns = facts.schema.returns
    if facts.written:
        in_place = facts.writes_self and not lists
        over_a_list = (
            kinds[0] == "List[Tensor]" and len(facts.written) == 1 and facts.written[0].name == "self"
        )
        return (in_place or over_a_list) and (not returns or (len(returns) == 1 and in_place))
    return (bool(returns) and all(str(r.type) == "Tensor" for r in returns)) or (
        len(returns) == 1 and str(returns[0].type) == "List[Tensor]" and bool(lists)
    )


# -- handlers ---------------------------------------------------------------------------------------------------------


def _leading_tensors(kinds: list[str]) -> int:
    """1 or 2 if the op takes that many tensors, in front; else 0."""
    count = sum("Tensor" in kind for kind in kinds)
    return count if count <= 2 and kinds[:count] == ["Tensor"] * count else 0


def _one_tensor(entries: dict[Any, Entry], general: Plan, any_form: Plan) -> Plan:
    """For ops of one contiguous tensor and one result, without a list or a loop over arguments."""
    plain, array, memory, base = _PLAIN, _Array, MEMORY, BASE

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        a = args[0] if args else None
        if kwargs or a.__class__ not in plain:
            return any_form(args, kwargs)
        index = a.get_device()
        if index < 0:  # the host's: it may have no shape (nested) or no data pointer (sparse)
            return general(args, kwargs)
        if len(args) == 1:
            entry = entries.get((index, a.dtype, a.shape))
        else:
            entry = entries.get((index, a.dtype, a.shape, *_constants(args[1:])))
        try:
            plainly_laid_out = entry is not None and a.is_contiguous()
        except RuntimeError:  # sparse on the device
            return general(args, kwargs)
        if not plainly_laid_out:
            return any_form(args, kwargs)
        address = a.data_ptr()
        function, tick, device, explain, when, _, layouts = entry
        if not address or (when is not None and when(*args) is not True):
            return general(args, kwargs)
        shape, dtype, _ = layouts[0]
        try:
            result = function(array(shape, dtype, memory, address - base), *args[1:])
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        return adopt(device, result)

    return calls_kernels(handler)


def _two_tensors(entries: dict[Any, Entry], general: Plan, any_form: Plan) -> Plan:
    """For ops of two contiguous tensors and one result."""
    plain, array, memory, base = _PLAIN, _Array, MEMORY, BASE

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) < 2:
            return any_form(args, kwargs)
        a, b = args[0], args[1]
        if a.__class__ not in plain or b.__class__ not in plain:
            return any_form(args, kwargs)
        index = a.get_device()
        if index < 0 or b.get_device() != index:  # likewise
            return general(args, kwargs)
        try:
            plainly_laid_out = a.is_contiguous() and b.is_contiguous()
        except RuntimeError:  # sparse on the device
            return general(args, kwargs)
        if not plainly_laid_out:
            return any_form(args, kwargs)
        if len(args) == 2:
            entry = entries.get((index, a.dtype, a.shape, b.dtype, b.shape))
        else:
            entry = entries.get((index, a.dtype, a.shape, b.dtype, b.shape, *_constants(args[2:])))
        if entry is None:
            return any_form(args, kwargs)
        address, address_b = a.data_ptr(), b.data_ptr()
        function, tick, device, explain, when, _, layouts = entry
        if not (address and address_b) or (when is not None and when(*args) is not True):
            return general(args, kwargs)
        (shape, dtype, _), (shape_b, dtype_b, _) = layouts[0], layouts[1]
        try:
            result = function(
                array(shape, dtype, memory, address - base),
                array(shape_b, dtype_b, memory, address_b - base),
                *args[2:],
            )
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        return adopt(device, result)

    return calls_kernels(handler)


def _any_form(
    entries: dict[Any, Entry], with_bfloat16: dict[Any, Entry], general: Plan, facts: OpFacts
) -> Plan:
    """For any number of tensors and lists of tensors, strided ones and bfloat16 too; for ops that write, too."""
    in_place, may_see_neg = facts.writes_self, facts.may_see_neg

    def handler(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            key = _key(args, kwargs)
            entry = entries.get(key) or with_bfloat16.get(key)
            arrays = None if entry is None else _arrays(args, entry.layouts)
        except RuntimeError:  # sparse on the device
            return general(args, kwargs)
        if entry is None:
            return general(args, kwargs)
        function, tick, device, explain, when, finish, _ = entry
        if arrays is None or (in_place and _overlap(args, arrays)):
            return general(args, kwargs)
        if may_see_neg and any(tensor.is_neg() for tensor in tensors_in(args, kwargs)):
            return general(args, kwargs)
        if when is not None and when(*args, **kwargs) is not True:
            return general(args, kwargs)
        try:
            answer = function(*arrays, **kwargs)
        except Unsupported:
            return general(args, kwargs)
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise
        tick()
        return finish(device, args, arrays, answer)

    return calls_kernels(handler)


def _overlap(args: tuple[Any, ...], arrays: list[Any]) -> bool:
    """Whether the first tensor may share memory with another argument that is not the same tensor."""
    target, array = args[0], arrays[0]
    for value, other in zip(args[1:], arrays[1:], strict=True):
        if other.__class__ is _Array and value is not target and _share_memory(array, other):
            return True
    return False


# -- keys and arrays --------------------------------------------------------------------------------------------------
#
# A key is the device's index, then for each argument in order: dtype and shape of a tensor, its strides if it is not
# contiguous; the class and value of anything else. Of a float only the class, in a list too: a learning rate changes what is
# computed, not how.


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """The key of a call; ``None`` for one the hot path does not serve."""
    index = _index_of_first(args)
    if index < 0:
        return None
    key: list[Any] = [index]
    for value in args:
        if value.__class__ in _PLAIN:
            if value.get_device() != index:
                return None
            key += (value.dtype, value.shape)
            if not value.is_contiguous():
                key.append(value.stride())
        elif value.__class__ is list and value and value[0].__class__ in _PLAIN:
            if not _PLAIN.issuperset(map(type, value)) or {*map(_get_device, value)} != {index}:
                return None
            key += (len(value), *map(_dtype_and_shape, value))
            if not all(map(_is_contiguous, value)):
                key += map(_stride, value)
        else:
            key += _constant(value)
    return tuple(key) if not kwargs else _with_keywords(key, kwargs)


def _index_of_first(args: tuple[Any, ...]) -> int:
    """The device index of the first tensor, or -1: there is none, or the host's, which may have no shape or data pointer."""
    first = args[0] if args else None
    if first.__class__ is list and first:
        first = first[0]
    return first.get_device() if first.__class__ in _PLAIN else -1


def _with_keywords(key: list[Any], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    for name, value in kwargs.items():
        if isinstance(value, torch.Tensor | list | tuple):
            return None
        key += (name, *_constant(value))
    return tuple(key)


def _constant(value: Any) -> tuple[Any, ...]:
    kind = value.__class__
    if kind is float:
        return (kind,)
    if kind is not list:
        return (kind, value)
    # likewise: an optimizer's bias corrections are other ones in every step
    return (kind, tuple(map(type, value) if value and value[0].__class__ is float else value))


def _constants(values: tuple[Any, ...]) -> list[Any]:
    return [part for value in values for part in _constant(value)]


def _layout(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return list(zip(*map(_layout, value), strict=True))
    if not isinstance(value, torch.Tensor):
        return None
    dtype = NUMPY_CARRIERS[value.dtype]
    strides = None if value.is_contiguous() else tuple(dtype.itemsize * step for step in value.stride())
    return tuple(value.shape), dtype, strides


def _arrays(args: tuple[Any, ...], layouts: tuple[Any, ...]) -> list[Any] | None:
    """The arguments with arrays in place of tensors; ``None`` if one owns no memory."""
    arrays: list[Any] = []
    for value, layout in zip(args, layouts, strict=True):
        if layout is None:
            arrays.append(value)
        elif layout.__class__ is list:
            addresses = list(map(_data_ptr, value))
            if 0 in addresses:
                return None
            shapes, dtypes, strides = layout
            offsets = [address - BASE for address in addresses]
            arrays.append(list(map(_Array, shapes, dtypes, repeat(MEMORY), offsets, strides)))
        else:
            address = value.data_ptr()
            if not address:
                return None
            shape, dtype, strides = layout
            arrays.append(_Array(shape, dtype, MEMORY, address - BASE, strides))
    return arrays
