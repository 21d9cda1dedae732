"""Every in-place form and every view that OpInfo has: a ShadowTensor comes out of them as the tensor that it wraps does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map_only

import flroute

DEVICE = flroute.device("reference")
SAMPLES = 3
SEED = 3

IN_PLACE = {
    f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if op.get_inplace() is not None
}
PLAIN = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


class Outcome:
    """What a call made: tensors and numbers, or an error."""

    def __init__(self, call: Callable[[], Any]) -> None:
        torch.manual_seed(SEED)
        self.error: Exception | None = None
        self.leaves: list[Any] = []
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.leaves = tree_flatten(call())[0]
        except Exception as error:  # both sides have to raise the same, whatever it is
            self.error = error


def samples_of(op: Any) -> list[Any]:
    taken = op.supported_dtypes("cpu")
    dtypes = [d for d in (torch.float32, torch.complex64, torch.int64, torch.bool) if d in taken]
    if not dtypes:
        return []  # for other devices than the host
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(islice(op.sample_inputs("cpu", dtypes[0], requires_grad=False), SAMPLES))


def moved(value: Any, *, shadowed: bool) -> Any:
    """A copy on the device of each tensor; one tensor stays one."""
    made: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            there = tensor.detach().to(DEVICE)
            made[id(tensor)] = flroute.ShadowTensor(there) if shadowed else there
        return made[id(tensor)]

    return tree_map_only(torch.Tensor, move, value)


def value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, flroute.ShadowTensor) else leaf


def assert_same(ours: list[Any], plain: list[Any]) -> None:
    assert len(ours) == len(plain)
    for one, other in zip(ours, plain, strict=True):
        if not isinstance(other, torch.Tensor):
            assert one == other or (isinstance(other, float) and math.isnan(one) and math.isnan(other))
            continue
        for fact in ("shape", "dtype", "device", "layout"):
            assert getattr(one, fact) == getattr(other, fact), fact
        if other.layout is torch.strided:
            assert one.stride() == other.stride()
            assert one.storage_offset() == other.storage_offset()
            assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        torch.testing.assert_close(value_of(one).cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True)


def is_alias(tensor: Any, of: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.layout is torch.strided
        and of.layout is torch.strided
        and tensor.untyped_storage()._cdata == of.untyped_storage()._cdata
    )


def written_through(leaf: torch.Tensor) -> None:
    """Something else in each element."""
    if leaf.dtype is torch.bool:
        leaf.logical_not_()
    else:
        leaf.add_(1)


def each_of(check: Callable[[str], None], names: list[str]) -> None:
    """All of them, so that one test tells every op that fails; tests of their own would take longer to set up than to run."""
    failed = {}
    for name in names:
        try:
            check(name)
        except AssertionError as error:
            failed[name] = str(error)
    assert not failed


PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_ops_in_place(part: int) -> None:
    assert len(IN_PLACE) > 100
    each_of(check_in_place, list(IN_PLACE)[part::PARTS])


@pytest.mark.parametrize("part", range(PARTS))
def test_views_of_arguments(part: int) -> None:
    seen_as_views.clear()
    each_of(check_view, list(PLAIN)[part::PARTS])
    assert len(seen_as_views) > 3


seen_as_views: set[str] = set()


def check_in_place(name: str) -> None:
    op = IN_PLACE[name]
    for sample in samples_of(op):
        call = (sample.input, sample.args, sample.kwargs)
        plain, ours = moved(call, shadowed=False), moved(call, shadowed=True)
        expected = Outcome(lambda: op.get_inplace()(plain[0], *plain[1], **plain[2]))
        found = Outcome(lambda: op.get_inplace()(ours[0], *ours[1], **ours[2]))
        assert type(found.error) is type(expected.error), (found.error, expected.error)
        if expected.error is None:
            assert_same(found.leaves, expected.leaves)
            assert (found.leaves[0] is ours[0]) == (expected.leaves[0] is plain[0])
        assert_same(tree_flatten(ours)[0], tree_flatten(plain)[0])
        if isinstance(plain[0], torch.Tensor):
            assert ours[0]._version == plain[0]._version


def check_view(name: str) -> None:
    op = PLAIN[name]
    for sample in samples_of(op):
        call = (sample.input, sample.args, sample.kwargs)
        plain = moved(call, shadowed=False)
        expected = Outcome(lambda: op(plain[0], *plain[1], **plain[2]))
        bases = [t for t in tree_flatten(plain)[0] if isinstance(t, torch.Tensor)]
        if not any(is_alias(leaf, base) for leaf in expected.leaves for base in bases):
            continue
        seen_as_views.add(name)
        ours = moved(call, shadowed=True)
        found = Outcome(lambda: op(ours[0], *ours[1], **ours[2]))
        assert found.error is None
        assert_same(found.leaves, expected.leaves)
        our_bases = [t for t in tree_flatten(ours)[0] if isinstance(t, torch.Tensor)]
        for one, other in zip(found.leaves, expected.leaves, strict=True):
            for our_base, base in zip(our_bases, bases, strict=True):
                if is_alias(other, base):
                    assert is_alias(one, our_base), f"{name} is no view of its base"
                    assert one._is_view() == other._is_view()
        target, plain_target = found.leaves[-1], expected.leaves[-1]
        plain_written, ours_written = (
            Outcome(lambda t=t: written_through(t)) for t in (plain_target, target)
        )
        assert type(ours_written.error) is type(plain_written.error)
        assert_same(our_bases, bases)
        for base in our_bases:
            if isinstance(base, flroute.ShadowTensor) and not base.is_conj():
                torch.testing.assert_close(base.value.cpu(), base.reference.to(base.dtype), equal_nan=True)
