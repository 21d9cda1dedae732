"""What PyTorch itself says the results of a call look like: the op run on meta tensors, which have no data."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch

from flroute.routing.schema import facts_of, with_numbers_as_tensors
from flroute.torch_compat import host_shape_rules

_META = torch.device("meta")


MAX_SIGNATURES = 8192
"""Signatures remembered in the process; with more, the memory starts anew."""

Expected = list["torch.Tensor | None"]

_known: dict[Any, Expected | None] = {}


def expected_results(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expected | None:
    """Meta tensors with the shape, strides and dtype of each result; remembered by the arguments' signature.

    Returns:
        One entry per tensor result, or ``None`` if PyTorch cannot tell without the data (``nonzero``, ``unique``).
    """
    try:
        sign = _signature_on_lists if facts_of(op).name.startswith("aten::_foreach_") else _signature
        key = (op, *map(sign, args), *((name, sign(value)) for name, value in kwargs.items()))
        if key in _known:
            return _known[key]
    except TypeError:  # an argument that cannot be hashed
        return _ask_pytorch(op, args, kwargs)
    if len(_known) >= MAX_SIGNATURES:
        _known.clear()
    expected = _known[key] = _ask_pytorch(op, args, kwargs)
    return expected


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.is_conj()
    if isinstance(value, list | tuple):
        return tuple(_signature(item) for item in value)
    return value.__class__, value


def _signature_on_lists(value: Any) -> Any:
    """The same for an op on lists of tensors, whose results look alike whatever its floats: an optimizer's differ in every step."""
    if isinstance(value, float):
        return float
    if isinstance(value, list | tuple):
        return tuple(_signature_on_lists(item) for item in value)
    return _signature(value)


_REFUSALS = (RuntimeError, ValueError, TypeError, AssertionError, IndexError, ArithmeticError)


def _ask_pytorch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expected | None:
    if _may_not_cast(op, args, kwargs):
        return host_results(op, args, kwargs)
    try:
        result = _on_meta(op, args, kwargs, host_shape_rules())
    except NotImplementedError:
        return None  # no meta kernel, or a result that depends on the data
    except _REFUSALS:
        # A call PyTorch refuses, or a meta kernel that cannot tell; the host knows, and raises its own error.
        if facts_of(op).is_seeded:
            return None
        try:
            result = _on_meta(
                op, args, kwargs, nullcontext()
            )  # a device may do more than the host (histc of integers)
        except _REFUSALS:
            return host_results(op, args, kwargs)
    results = list(result) if isinstance(result, tuple | list) else [result]
    if not all(r is None or isinstance(r, torch.Tensor) for r in results):
        return None
    if any(r is not None and r.dim() > 1 and not r.numel() for r in results) and not facts_of(op).is_seeded:
        # PyTorch's rules for data-free tensors order the dimensions of an empty result as its kernels do not.
        with suppress(
            NotImplementedError
        ):  # the host has no kernel: what PyTorch says without data is all there is
            return host_results(op, args, kwargs)
    return results


def check_before_writing(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse what PyTorch refuses while nothing is written: a fault in a list may be found in its last tensor.

    PyTorch's rules for ops that write a list look at no more than its length, so those of the op that returns one are asked.

    Raises:
        Exception: the host's own.
    """
    expected_results(op, args, kwargs)
    twin = facts_of(op).functional_of_list
    if twin is None:
        return
    if (
        len({target.dtype for target in args[0]}) > 1
    ):  # what an op takes of a dtype is known to its host kernel alone
        host_results(op, args, kwargs)
        return
    for target, result in zip(args[0], expected_results(twin, args, kwargs) or (), strict=False):
        if result is not None and not (
            result.shape == target.shape and torch.can_cast(result.dtype, target.dtype)
        ):
            host_results(op, args, kwargs)
            return


def _may_not_cast(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an ``out=`` has another dtype than the result: some ops cast, some do not, and only the host knows which."""
    facts = facts_of(op)
    if not facts.out_names or facts.functional is None or facts.is_seeded:
        return False
    inputs = {name: value for name, value in kwargs.items() if name not in facts.out_names}
    results = expected_results(facts.functional, args, inputs) or ()
    outs = [kwargs.get(name) for name in facts.out_names]
    return any(
        r is not None and isinstance(out, torch.Tensor) and r.dtype != out.dtype
        for r, out in zip(results, outs, strict=False)
    )


def _on_meta(
    op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rules: AbstractContextManager[None]
) -> Any:
    facts = facts_of(op)
    inputs = tuple(map(_to_meta, with_numbers_as_tensors(facts, args)))
    named = {name: _to_meta(value) for name, value in kwargs.items()}
    with torch.no_grad(), rules, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the call itself is going to warn
        return op(*inputs, **named)


def host_copy(value: Any) -> Any:
    """A call's argument for a call on the host: tensors and generators copied, devices the host."""
    if isinstance(value, torch.Tensor) and value.is_conj():
        return host_copy(value.conj()).conj()
    if isinstance(value, torch.Tensor) and not value.numel():  # copying one may itself ask what to expect
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.Generator):
        return value.clone_state()
    if isinstance(value, list | tuple):
        return type(value)(host_copy(item) for item in value)
    return value


def host_results(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expected:
    """What the host's own kernel returns for copies of the arguments: slow, and the last word. Random streams stay where they are.

    Raises:
        Exception: the host's own, if it refuses the call.
    """
    inputs = with_numbers_as_tensors(facts_of(op), args)
    with torch.no_grad(), torch.random.fork_rng(devices=()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = op(*map(host_copy, inputs), **{name: host_copy(value) for name, value in kwargs.items()})
    results = list(result) if isinstance(result, tuple | list) else [result]
    return [r.to(_META) if isinstance(r, torch.Tensor) else None for r in results]


def raise_what_the_host_raises(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, note: str) -> None:
    """Let the host refuse, in its own words, a call that no vendor could serve; do nothing if the host would serve it.

    Raises:
        Exception: the host's own, with ``note``.
    """
    try:
        host_results(op, args, kwargs)
    except Exception as error:  # whatever the host raises reaches the caller as it is
        if hasattr(error, "add_note"):
            error.add_note(note)
        raise


def _to_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
        return made.conj() if value.is_conj() else made
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, list | tuple):
        return type(value)(_to_meta(item) for item in value)
    if isinstance(value, torch.Generator):
        return None
    return value
