"""A call that fails, however late its fault is found, leaves every tensor as it was: bits, shape, strides and memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import flroute
from flroute.device.table import device_at
from flroute.routing import native

Call = Callable[..., Any]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def state(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.cpu().contiguous().flatten()
    bits = flat.view(torch.uint8).tolist() if flat.numel() else []
    return bits, tensor.shape, tensor.stride(), tensor.data_ptr(), tensor.untyped_storage().nbytes()


def session(policy: str = "error") -> flroute.Session:
    return flroute.enable("reference", fallback=policy, default_device=False)


# -- the fault is in the last element -----------------------------------------------------------------


def t(*shape: int, like: torch.Tensor) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count, dtype=torch.float32).reshape(shape) + 1).to(like.dtype).to(like.device)


def i(*values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device)


LATE: dict[str, Call] = {
    "index_put_": lambda x: x.index_put_((i(0, 1, 9, like=x),), t(3, 4, like=x)),
    "index_put_ accumulate": lambda x: x.index_put_((i(0, 1, 9, like=x),), t(3, 4, like=x), accumulate=True),
    "index_put_ of two": lambda x: x.index_put_((i(0, 1, like=x), i(0, 9, like=x)), t(2, like=x)),
    "setitem": lambda x: x.__setitem__((slice(None), i(0, 1, 9, like=x)), 0),
    "scatter_": lambda x: x.scatter_(0, i([0], [1], [9], like=x), t(3, 1, like=x)),
    "scatter_ of a value": lambda x: x.scatter_(0, i([0], [1], [9], like=x), 5),
    "scatter_ with add": lambda x: x.scatter_(0, i([0], [1], [9], like=x), t(3, 1, like=x), reduce="add"),
    "scatter_ of a value with multiply": lambda x: x.scatter_(0, i([0], [9], like=x), 5, reduce="multiply"),
    "scatter_add_": lambda x: x.scatter_add_(0, i([0], [1], [9], like=x), t(3, 1, like=x)),
    **{
        f"scatter_reduce_ {how}": lambda x, h=how: x.scatter_reduce_(0, i([0], [1], [9], like=x), t(3, 1, like=x), h)
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
    "index_add_": lambda x: x.index_add_(0, i(0, 1, 9, like=x), t(3, 4, like=x)),
    "index_copy_": lambda x: x.index_copy_(0, i(0, 1, 9, like=x), t(3, 4, like=x)),
    "index_fill_": lambda x: x.index_fill_(0, i(0, 1, 9, like=x), 1),
    "index_reduce_": lambda x: x.index_reduce_(0, i(0, 1, 9, like=x), t(3, 4, like=x), "prod"),
    "put_": lambda x: x.put_(i(0, 1, 99, like=x), t(3, like=x)),
    "put_ accumulate": lambda x: x.put_(i(0, 1, 99, like=x), t(3, like=x), accumulate=True),
    "masked_scatter_": lambda x: x.masked_scatter_(x < 9, t(2, like=x)),
    "embedding_renorm_": lambda x: torch.embedding_renorm_(x, i(0, 1, 9, like=x), 0.5, 2.0),
    "embedding with max_norm": lambda x: torch.nn.functional.embedding(i(0, 1, 9, like=x), x, max_norm=0.5),
    "take out": lambda x: torch.take(x.clone(), i(0, 1, 99, like=x), out=x[0, :3]),
    "gather out": lambda x: torch.gather(x.clone(), 0, i([0], [1], [9], like=x), out=x[:, :1]),
    "index_select out": lambda x: torch.index_select(x.clone(), 0, i(0, 1, 9, like=x), out=x),
    "index_add out": lambda x: torch.index_add(x.clone(), 0, i(0, 1, 9, like=x), t(3, 4, like=x), out=x),
    "scatter out": lambda x: torch.scatter(x.clone(), 0, i([0], [1], [9], like=x), 5, out=x),
    "nll_loss out": lambda x: torch.ops.aten.nll_loss_forward.output(
        t(2, 3, like=x), i(0, 9, like=x), None, 0, -100, output=x[0, :2], total_weight=x[1, 0]
    ),
}  # fmt: skip
HOST_RENORMS_FIRST = {"embedding with max_norm": "rows are brought to their norm before they are looked up"}

MODES: dict[str, Callable[[], Any]] = {
    "no fallback": session,
    "fallback": lambda: session("allow"),
    "in inference": torch.inference_mode,
    "after many good calls": session,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32], ids=str)
def test_an_index_out_of_range(dtype: torch.dtype, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mode == "after many good calls":
        monkeypatch.setattr(native, "MAX_CHECKED", 0)
    found = []
    for (name, call), transposed in itertools.product(LATE.items(), (False, True)):
        host = (
            t(4, 3, like=torch.empty(0, dtype=dtype)).t()
            if transposed
            else t(3, 4, like=torch.empty(0, dtype=dtype))
        )
        errors = []
        for x in (host.clone(), host.to("fl")):
            before = state(x)
            with MODES[mode]():
                try:
                    call(x)
                except Exception as error:  # whatever the host raises is what is asked for
                    errors.append(type(error))
                else:
                    errors.append(None)
        if errors[0] is None or errors[0] is not errors[1]:
            found.append(f"{name}: {errors[1]} instead of {errors[0]}")
        if state(x) != before:
            found.append(f"{name}{' of a transposed tensor' if transposed else ''}: written, {errors[1]}")
    assert not found, "\n".join(found)


# -- the fault is in the third tensor of a list -------------------------------------------------------


def foreach_calls() -> Iterator[tuple[str, Any]]:
    """Every op that writes a list of tensors, with the overloads."""
    for name in sorted(dir(torch.ops.aten)):
        if name.startswith("_foreach_") and name.endswith("_"):
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                yield f"{name}.{overload}", getattr(packet, overload)


FOREACH = dict(foreach_calls())


def lists(shapes: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
    return [torch.full(shape, 2.0).to(dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def arguments(op: Any, bad: str) -> list[Any] | None:
    """Host arguments whose third entry is at fault; ``None`` where an op has nothing of the kind."""
    shapes, floats = [(3,), (2, 2), (2, 3), (4,)], [torch.float32] * 4
    wrong_shape = [(3,), (2, 2), (7, 5), (4,)]
    complexes = [torch.float32, torch.float32, torch.complex64, torch.float32]
    integers = [torch.float32, torch.float32, torch.int64, torch.float32]
    made: list[Any] = []
    fits = bad != "operand"
    for position, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if kind == "List[Tensor]" and position == 0:
            made.append(lists(shapes, integers if bad == "target" else floats))
        elif kind == "List[Tensor]":
            made.append(lists(shapes if fits else wrong_shape, floats))
            if bad == "dtype":
                made[-1] = lists(shapes, complexes)
        elif kind == "Tensor":
            made.append(torch.tensor([1.0, 2.0, 3.0, 4.0]) if bad == "operand" else torch.tensor(1.5))
        elif kind in ("number", "Scalar"):
            made.append(1.5)
        elif "List" in kind:
            made.append([1.5, 1.5, 1j if bad == "dtype" else 1.5, 1.5])
    return made if len(made) > 1 or bad == "target" else None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bad", ["operand", "dtype", "target"])
@pytest.mark.parametrize("name", FOREACH)
def test_the_third_of_a_list(name: str, bad: str) -> None:
    """Whatever the host makes of it: what it refuses the device refuses, and writes none of the four."""
    given = arguments(FOREACH[name], bad)
    if given is None:
        assert "_foreach_" in name  # one list, and nothing to go with it
        return
    there = torch.utils._pytree.tree_map(lambda x: x.to("fl") if isinstance(x, torch.Tensor) else x, given)
    before = list(map(state, there[0]))
    results: list[Any] = []
    for values, where in ((given, session("allow")), (there, session("error"))):
        with where:
            try:
                FOREACH[name](*values)
            except Exception as error:  # whatever the host raises is what is asked for
                results.append(type(error))
            else:
                results.append(None)
    if results[0] is not None:
        assert results[1] is results[0]
        assert list(map(state, there[0])) == before
    elif results[1] is None:
        for ours, theirs in zip(there[0], given[0], strict=True):
            torch.testing.assert_close(ours.cpu(), theirs)


# -- there is no memory left --------------------------------------------------------------------------


@contextmanager
def failing_allocation(number: int) -> Iterator[list[int]]:
    """The allocation of this number, and every later one, fails. Yields how many there were."""
    memory, seen = device_at(0).memory, [0]

    def refusing(function: Callable[..., Any]) -> Callable[..., Any]:
        def allocate(*args: Any) -> Any:
            seen[0] += 1
            if seen[0] > number:
                raise MemoryError("none left")
            return function(*args)

        return allocate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "allocate", refusing(memory.allocate))
        yield seen


GROWING: dict[str, tuple[Call, tuple[torch.dtype, ...]]] = {
    "max": (lambda x, *o: torch.max(x, 0, out=o), (torch.float32, torch.int64)),
    "sort": (lambda x, *o: torch.sort(x, out=o), (torch.float32, torch.int64)),
    "topk": (lambda x, *o: torch.topk(x, 2, out=o), (torch.float32, torch.int64)),
    "kthvalue": (lambda x, *o: torch.kthvalue(x, 2, out=o), (torch.float32, torch.int64)),
    "mode": (lambda x, *o: torch.mode(x, out=o), (torch.float32, torch.int64)),
    "median": (lambda x, *o: torch.median(x, 0, out=o), (torch.float32, torch.int64)),
    "cummax": (lambda x, *o: torch.cummax(x, 0, out=o), (torch.float32, torch.int64)),
    "aminmax": (lambda x, *o: torch.aminmax(x, dim=0, out=o), (torch.float32, torch.float32)),
    "frexp": (lambda x, *o: torch.frexp(x, out=o), (torch.float32, torch.int32)),
    "svd": (lambda x, *o: torch.linalg.svd(x, out=o), (torch.float32,) * 3),
    "qr": (lambda x, *o: torch.linalg.qr(x, out=o), (torch.float32,) * 2),
    "lu": (lambda x, *o: torch.linalg.lu(x, out=o), (torch.float32,) * 3),
    "eigh": (lambda x, *o: torch.linalg.eigh(x @ x.t(), out=o), (torch.float32,) * 2),
    "slogdet": (lambda x, *o: torch.linalg.slogdet(x[:3, :3], out=o), (torch.float32,) * 2),
    "histogram": (lambda x, *o: torch.histogram(x, 3, out=o), (torch.float32,) * 2),
    "unbind_copy": (lambda x, *o: torch.unbind_copy(x, out=o), (torch.float32,) * 4),
    "fallback": (lambda x, *o: torch.geqrf(x[:0], out=o), (torch.float32,) * 2),
}  # fmt: skip
SEVERAL_CALLS = dict.fromkeys(
    ("unbind_copy", "split_copy", "cummax"), "PyTorch grows and writes one tensor after another"
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kept", [0, 1], ids=["empty", "of another shape"])
@pytest.mark.parametrize("name", GROWING)
def test_no_room_for_a_later_result(name: str, kept: int) -> None:
    """Each allocation of the call fails once; none leaves an earlier ``out=`` resized."""
    call, dtypes = GROWING[name]
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    there = x.to("fl")
    expected = [torch.empty(kept, dtype=dtype) for dtype in dtypes]
    call(x, *expected)
    failures = 0
    with session("allow"):
        for number in range(20):
            outs = [torch.ones(kept, dtype=dtype, device="fl") for dtype in dtypes]
            before = list(map(state, outs))
            with failing_allocation(number) as seen:
                try:
                    call(there, *outs)
                except torch.OutOfMemoryError:
                    failures += 1
                else:
                    break
            if name not in SEVERAL_CALLS:
                assert list(map(state, outs)) == before, f"allocation {number} of {seen}"
    assert failures >= (len(outs) if name != "fallback" else 0)
    for ours, theirs in zip(outs, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
