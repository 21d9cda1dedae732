"""``out=`` of every dtype: the host's result or the type of its error, and nothing written by a call that is refused.

The calls are PyTorch's own samples of each op that takes ``out=``.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import flroute

OUT_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
OPS = {
    op.full_name: op for op in op_db if op.supports_out and not op.name.startswith(("sparse", "to_sparse"))
}
CALLS = [
    pytest.param(name, dtype, id=f"{name}-{dtype}")
    for name, op in OPS.items()
    for dtype in (torch.float32, torch.int64)
    if dtype in op.supported_dtypes("cpu")
]

HOST_WRITES_TOO = dict.fromkeys(("diff", "kron", "stack", "linalg.matrix_power", "linalg.matrix_rank", "linalg.matrix_rank.hermitian"), "a composite: PyTorch has resized out= before the op that refuses it is called")  # fmt: skip
NOT_COMPARED = {
    "linalg.matrix_rank": "under any mode PyTorch's own implementation forgets out=",
    "linalg.matrix_rank.hermitian": "likewise",
    "linalg.eig": "eigenvalues come in any order, eigenvectors at any scale",
    "topk": "of equal elements either may be named",
    "kthvalue": "likewise",
}
ONLY_HERE = {"normal.number_mean": "the host does not resize out=, and raises where its shape is another"}


def samples(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """The first sample that is an op of strided tensors on the host."""
    random.seed(0)
    torch.default_generator.manual_seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 2):
        with contextlib.suppress(Exception):
            result = op(sample.input, *sample.args, **sample.kwargs)
            outs = list(result) if isinstance(result, (tuple, list)) else [result]
            if all(isinstance(o, torch.Tensor) and o.layout is torch.strided for o in outs):
                yield sample, type(result), outs
                return


def outcome(op: Any, sample: Any, pack: Callable[[Any], Any], outs: list[torch.Tensor]) -> Exception | None:
    """What the call raises, if anything."""
    device = outs[0].device.type if outs else "cpu"
    moved = tree_map(
        lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, (sample.input, sample.args)
    )
    named = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, sample.kwargs)
    if "device" in named:
        named["device"] = device
    torch.default_generator.manual_seed(1)  # torch.manual_seed formats a stack trace for each absent device
    try:
        op(moved[0], *moved[1], **named, out=pack(outs))
    except Exception as error:  # to be compared by its type
        return error
    return None


def bits(x: torch.Tensor) -> tuple[torch.Size, list[int]]:
    flat = x.cpu().resolve_conj().contiguous().flatten()
    return x.shape, flat.view(torch.uint8).tolist() if flat.numel() else []


def near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    if not (theirs.is_floating_point() or theirs.is_complex()):
        return torch.equal(ours, theirs)
    loose = 2e-2 if theirs.dtype in (torch.float16, torch.bfloat16) else 2e-3
    wide = torch.complex128 if theirs.is_complex() else torch.float64
    return torch.allclose(ours.to(wide), theirs.to(wide), rtol=loose, atol=1e-3, equal_nan=True)


def faults(name: str, dtype: torch.dtype) -> Iterator[str]:
    op = OPS[name]
    for sample, kind, results in samples(op, dtype):

        def pack(outs: list[torch.Tensor], kind: type = kind) -> Any:
            if kind is torch.Tensor:
                return outs[0]
            return kind(outs) if kind in (tuple, list) else tuple(outs)

        outs = {
            f"{dtype} -> {out_dtype}{', resized' if grows else ''}": [
                torch.ones((0,) if grows else r.shape, dtype=out_dtype) for r in results
            ]
            for out_dtype, grows in itertools.product(OUT_DTYPES, (False, True))
        }
        here = {call: [x.clone() for x in before] for call, before in outs.items()}
        there = {call: [x.to("fl") for x in before] for call, before in outs.items()}
        expected = {call: outcome(op, sample, pack, targets) for call, targets in here.items()}
        with flroute.enable("reference", fallback="allow", default_device=False):
            made = {call: outcome(op, sample, pack, targets) for call, targets in there.items()}
        for call, before in outs.items():
            if type(made[call]) is not type(expected[call]):
                yield f"{call}: {made[call]!r} instead of {expected[call]!r}"
            elif expected[call] is not None:
                if list(map(bits, there[call])) != list(map(bits, before)) and name not in HOST_WRITES_TOO:
                    yield f"{call}: written, and {made[call]!r}"
            elif not op.name.startswith("empty") and name not in NOT_COMPARED:
                for ours, theirs in zip(there[call], here[call], strict=True):
                    yield from differences(call, ours, theirs)


def differences(call: str, ours: torch.Tensor, theirs: torch.Tensor) -> Iterator[str]:
    laid_out = ours.stride() == theirs.stride() or not theirs.numel()
    if ours.shape != theirs.shape or not laid_out:
        yield f"{call}: {ours.shape}, {ours.stride()} instead of {theirs.shape}, {theirs.stride()}"
    elif not near(ours.cpu(), theirs):
        yield f"{call}: {ours.flatten()[:4].tolist()} instead of {theirs.flatten()[:4].tolist()}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "dtype"), CALLS)
def test_as_on_the_host(name: str, dtype: torch.dtype) -> None:
    found = list(faults(name, dtype))
    if name in ONLY_HERE:
        found = [fault for fault in found if "instead of RuntimeError" not in fault]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "reduce", [torch.sum, torch.prod, torch.nansum, torch.cumsum, torch.cumprod, torch.mean]
)
@pytest.mark.parametrize("dtype", OUT_DTYPES, ids=str)
@pytest.mark.parametrize(
    "given", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.bool], ids=str
)
def test_a_reduction_into_another_dtype_is_native(
    reduce: Callable[..., Any], given: torch.dtype, dtype: torch.dtype
) -> None:
    """The host casts first: -1.5 and 0.5 are -1 and 0 in a sum of integers."""
    x = torch.tensor([[-1.5, 0.5, 2.75], [3.0, 1.25, -0.5]]).to(given)
    expected = refused = None
    try:
        expected = reduce(x, 1, out=torch.empty(0, dtype=dtype))
    except Exception as error:  # whatever the host raises is what is asked for
        refused = type(error)
    out = torch.empty(0, dtype=dtype, device="fl")
    with flroute.enable("reference", fallback="error", default_device=False):
        if refused is not None:
            with pytest.raises(refused):
                reduce(x.to("fl"), 1, out=out)
            assert out.shape == (0,)
            return
        reduce(x.to("fl"), 1, out=out)
    assert expected is not None
    assert out.dtype is dtype
    assert near(out.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sum", "mean", "cumsum"])
def test_the_dtype_of_out_is_what_a_predicate_hears(name: str, dtype: torch.dtype) -> None:
    """Compiled kernels are for results of their arguments' dtype alone."""
    x = torch.arange(6000.0).reshape(2, 3000).remainder(7)
    expected = getattr(torch, name)(x, -1, out=torch.empty(0, dtype=dtype))
    with flroute.enable("reference", fallback="error", default_device=False):
        ours = getattr(torch, name)(x.to("fl"), -1, out=torch.empty(0, dtype=dtype, device="fl"))
    torch.testing.assert_close(ours.cpu(), expected)
