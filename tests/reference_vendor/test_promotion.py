from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from against_host import agree, run

from flroute.reference_vendor.promotion import result_type
from flroute.vendor import Unsupported

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64, torch.complex64)  # fmt: skip
REALS = DTYPES[:-1]
OPERANDS: list[Any] = [
    *(torch.tensor([4, 1, 3]).to(dtype) for dtype in DTYPES),
    *(torch.tensor(2).to(dtype) for dtype in DTYPES),
    True,
    2,
    1.5,
    2j,
]
BINARY = ["add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "eq.Tensor", "ne.Tensor", "lt.Tensor", "ge.Tensor",
          "maximum", "minimum", "atan2", "fmod.Tensor", "remainder.Tensor", "copysign.Tensor", "xlogy.Tensor", "fmax",
          "logical_and", "pow.Tensor_Tensor", "bitwise_and.Tensor", "bitwise_left_shift.Tensor", "rsub.Tensor"]  # fmt: skip


def _lowered(operand: Any) -> Any:
    return operand.numpy() if isinstance(operand, torch.Tensor) else operand


def test_result_types_are_pytorchs() -> None:
    for x, y in itertools.product(OPERANDS, OPERANDS):
        assert result_type(_lowered(x), _lowered(y)) == torch.result_type(x, y), f"{x!r} and {y!r}"


def test_result_types_follow_the_default_dtype() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for x in OPERANDS:
            assert result_type(_lowered(x), 1.5) == torch.result_type(x, 1.5)
        agree("aten::exp", torch.arange(3))
        agree("aten::div.Tensor", torch.arange(3), 2)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", BINARY)
def test_operands_of_two_dtypes(name: str) -> None:
    """Whatever the host takes; where it refuses, the kernel leaves it to the host or refuses with the same error."""
    op = getattr(getattr(torch.ops.aten, name.partition(".")[0]), name.partition(".")[2] or "default")
    for x, y in itertools.product(OPERANDS[: 2 * len(DTYPES)], OPERANDS):
        if not isinstance(y, torch.Tensor) and name not in {
            "add.Tensor",
            "sub.Tensor",
            "mul.Tensor",
            "div.Tensor",
        }:
            continue
        if name == "sub.Tensor" and isinstance(y, bool):
            continue  # refused by PyTorch's shape rules before any kernel is asked
        try:
            op(x, y)
        except RuntimeError as refused:
            with pytest.raises((Unsupported, type(refused))):
                run(f"aten::{name}", x, y)
            continue
        try:
            run(f"aten::{name}", x, y)
        except Unsupported:
            assert _may_be_left_to_the_host(name, x, y), f"{x!r} and {y!r} are left to the host"
            continue
        agree(f"aten::{name}", x, y)


def test_integers_divide_by_zero_as_floats() -> None:
    agree("aten::div.Tensor", torch.tensor([0, 1, -1]), torch.tensor(0))
    agree("aten::div.Tensor", torch.tensor([0, 1, -1]), torch.zeros(3))


def _may_be_left_to_the_host(name: str, x: torch.Tensor, y: Any) -> bool:
    return torch.result_type(x, y).is_complex and name in {"pow.Tensor_Tensor", "xlogy.Tensor"}


@pytest.mark.parametrize("alpha", [2, -3])
def test_alpha(alpha: int) -> None:
    for x, y in itertools.product(
        [torch.arange(3), torch.ones(3), torch.ones(3, dtype=torch.complex64)], repeat=2
    ):
        agree("aten::add.Tensor", x, y, alpha=alpha)
        agree("aten::sub.Tensor", x, y, alpha=alpha)
        agree("aten::rsub.Tensor", x, y, alpha=alpha)


def test_where() -> None:
    condition = torch.tensor([True, False, True])
    for x, y in itertools.product(OPERANDS[: 2 * len(DTYPES)], repeat=2):
        agree("aten::where.self", condition, x, y)


def test_shifts_beyond_the_width() -> None:
    x = torch.tensor([1, -1, 5, -128, 127], dtype=torch.int8)
    for by in (0, 1, 7, 8, 9, 100, -1):
        agree("aten::bitwise_left_shift.Tensor", x, torch.full((5,), by, dtype=torch.int8))
        agree("aten::bitwise_right_shift.Tensor", x, torch.full((5,), by, dtype=torch.int8))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_powers_of_integers(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, -1, 2, -3]).to(dtype)
    agree("aten::pow.Tensor_Scalar", x, 3)
    agree("aten::pow.Tensor_Scalar", x, 0.5)
    agree("aten::pow.Scalar", 2, x.abs())
    if dtype.is_signed:
        agree("aten::pow.Tensor_Tensor", x[1:, None], torch.arange(-3, 4, dtype=dtype))


def test_a_number_that_does_not_fit_is_left_to_the_host() -> None:
    with pytest.raises(Unsupported):
        run("aten::add.Tensor", torch.ones(3, dtype=torch.int32), 2**40)
    assert np.isinf(run("aten::add.Tensor", torch.ones(3), 1e300)).all()


def test_clamping_between_limits_of_other_dtypes() -> None:
    limits = [torch.tensor([1, 2, 2]), torch.tensor(2.5), torch.tensor(2, dtype=torch.uint8), None]
    for x in (
        torch.tensor([1, 2, 3]),
        torch.tensor([0.5, 2, float("nan")]),
        torch.tensor([1, 2, 3], dtype=torch.int8),
    ):
        for low, high in itertools.product(limits, limits):
            if low is not None or high is not None:
                agree("aten::clamp.Tensor", x, low, high)
            if low is not None:
                agree("aten::clamp_min.Tensor", x, low)
                agree("aten::clamp_max.Tensor", x, low)
        agree("aten::clamp", x, 1.5, 2)
    agree("aten::clamp_min.Tensor", torch.tensor([True, False]), torch.tensor([False, False]))


def test_fused_updates_of_several_dtypes() -> None:
    operands = [
        torch.tensor([1, 2, 3]),
        torch.tensor([1.5, 2, 3]),
        torch.tensor([1, 2, 3], dtype=torch.int32),
    ]
    for x, y, z in itertools.product(operands, repeat=3):
        agree("aten::addcmul", x, y, z, value=2)
        if y.is_floating_point() or z.is_floating_point():
            agree("aten::addcdiv", x, y, z, value=2)
    with pytest.raises(Unsupported):
        run("aten::addcdiv", *operands[::2], operands[0])


def test_a_range_of_floats_for_integers_is_cut_as_on_the_host() -> None:
    for limits in ((-0.5, 2.7), (0.0, 2.0), (1, 2)):
        agree("aten::hardtanh", torch.arange(-3, 5), *limits)
