"""A case out of an op's name, the shapes of its tensors, and what else it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch

from flroute.benchmark.cases import Case
from flroute.benchmark.timing import Work
from flroute.errors import FlrouteError
from flroute.report import counted
from flroute.torch_compat import all_op_names, find_op, overloads_of, schema_of

Shape = tuple[int, ...]


class _UnfitError(Exception):
    """An overload cannot be called with what was given; says why."""


class _Tensor(int):
    """Stands for a tensor among the arguments: its place among those given."""


def op_case(
    op: str,
    shapes: Sequence[Shape],
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    arguments: Mapping[str, object] | None = None,
) -> Case:
    """The case of one op, forward.

    Args:
        op: ``aten::softmax``, or one overload of it, ``aten::softmax.int``. Of several the first that fits is taken.
        shapes: of its tensors in order; the last one serves for those that remain.
        dtypes: likewise.
        arguments: what else it takes, by name. A ``dim`` that it needs and is not given is the last one.

    Raises:
        FlrouteError: no such op, or none of its overloads can be called so; says which and why.

    Example:
        >>> case = op_case("aten::softmax", [(2, 3)])
        >>> case.name, case.make(*case.inputs())().shape
        ('aten::softmax.int 2x3 float32 dim=-1', torch.Size([2, 3]))
    """
    name = op if "::" in op else f"aten::{op}"
    named = [name] if "." in name else overloads_of(name)
    overloads = [found for found in map(find_op, named) if found is not None]
    if not overloads:
        raise FlrouteError(f"this PyTorch has no op {name!r}{_hint(name)}")
    given = dict(arguments or {})
    reasons: dict[str, str] = {}
    for fills_dim in (False, True):  # a sum of everything before one over the last dimension
        for overload in overloads:
            try:
                args, kwargs = _bound(overload, len(shapes), dict(given), fills_dim=fills_dim)
            except _UnfitError as error:
                reasons[str(schema_of(overload))] = str(error)
                continue
            said = {"dim": -1, **given} if fills_dim else given
            return _case(overload, args, kwargs, shapes, dtypes, said)
    why = "".join(f"\n  {schema}: {reason}" for schema, reason in reasons.items())
    raise FlrouteError(f"{name} cannot be called with {counted(len(shapes), 'shape')} and {given}:{why}")


def _hint(name: str) -> str:
    namespace, _, rest = name.partition("::")
    packets = {known.partition(".")[0] for known in all_op_names() if known.startswith(f"{namespace}::")}
    words = sorted(packet.partition("::")[2] for packet in packets)
    close = [f"{namespace}::{word}" for word in get_close_matches(rest.partition(".")[0], words, n=3)]
    return f"; did you mean {', '.join(close)}?" if close else "; `flroute ops '*part*'` finds names"


def _case(
    op: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    shapes: Sequence[Shape],
    dtypes: Sequence[torch.dtype],
    said: Mapping[str, object],
) -> Case:
    """``said`` is what its name tells of the other arguments."""
    places = [
        x for value in (*args, *kwargs.values()) for x in (value if isinstance(value, list) else [value])
    ]
    count = sum(isinstance(x, _Tensor) for x in places)
    each = [(_at(shapes, i), _at(dtypes, i)) for i in range(count)]

    def inputs() -> tuple[torch.Tensor, ...]:
        torch.manual_seed(0)
        return tuple(_random(shape, dtype) for shape, dtype in each)

    def make(*tensors: torch.Tensor) -> Work:
        filled = [_filled(value, tensors) for value in args]
        named = {name: _filled(value, tensors) for name, value in kwargs.items()}
        return lambda: op(*filled, **named)

    words = [op.name(), *("x".join(map(str, shape)) or "scalar" for shape, _ in each)]
    words += dict.fromkeys(str(dtype).removeprefix("torch.") for _, dtype in each)
    words += [f"{name}={value}" for name, value in said.items()]
    return Case(" ".join(words), inputs, make)


def _bound(
    op: Any, shapes: int, arguments: dict[str, object], *, fills_dim: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments, with a ``_Tensor`` for each tensor.

    Raises:
        _UnfitError: they do not fit the schema.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    taken = 0

    def next_tensor() -> _Tensor:
        nonlocal taken
        taken += 1
        return _Tensor(taken - 1)

    for argument in schema_of(op).arguments:
        if argument.is_out:
            raise _UnfitError("results into out= are not measured")
        value = _value(argument, shapes - taken, arguments, next_tensor, fills_dim=fills_dim)
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    if arguments:
        raise _UnfitError(f"has no argument {', '.join(arguments)}")
    if taken < shapes:
        raise _UnfitError(f"takes {counted(taken, 'tensor')}, {counted(shapes, 'shape')} were given")
    return args, kwargs


def _value(
    argument: Any,
    left: int,
    arguments: dict[str, object],
    next_tensor: Callable[[], _Tensor],
    *,
    fills_dim: bool,
) -> Any:
    kind = str(argument.type)
    if argument.name in arguments:
        return arguments.pop(argument.name)
    if kind == "Tensor":
        return next_tensor()
    if kind == "Optional[Tensor]":
        return next_tensor() if left > 0 else None
    if kind == "List[Tensor]":
        return [next_tensor() for _ in range(max(left, 1))]
    if argument.has_default_value():
        return argument.default_value
    if fills_dim and argument.name == "dim" and kind in _LAST_DIM:
        return _LAST_DIM[kind]
    if kind.startswith("Optional["):
        return None
    raise _UnfitError(f"needs {argument.name}: --arg {argument.name}=...")


_LAST_DIM: dict[str, Any] = {"int": -1, "List[int]": [-1]}


def _at(values: Sequence[Any], place: int) -> Any:
    return values[min(place, len(values) - 1)]


def _random(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=torch.promote_types(dtype, torch.float32)).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 10, shape).to(dtype)


def _filled(value: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_filled(item, tensors) for item in value]
    return tensors[value] if isinstance(value, _Tensor) else value
