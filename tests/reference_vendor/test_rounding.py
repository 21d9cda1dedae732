from __future__ import annotations

import pytest
import torch
from against_host import FLOATS, INTEGERS, SHAPES, agree, broadcastable, given, run, values
from hypothesis import strategies as st

import flroute

DIVISIONS = [("aten::floor_divide", {}), ("aten::fmod.Tensor", {}), ("aten::remainder.Tensor", {}),
             *(("aten::div.Tensor_mode", {"rounding_mode": mode}) for mode in (None, "floor", "trunc"))]  # fmt: skip
EDGES = torch.tensor([0.0, -0.0, 1, -1.5, 2.5, -3, 7, 1e-45, float("inf"), -float("inf"), float("nan")])


def signs_too(op: str, *args: object, **named: object) -> None:
    agree(op, *args, **named)
    host = getattr(getattr(torch.ops.aten, op[6:].partition(".")[0]), op.partition(".")[2] or "default")
    zero = (expected := host(*args, **named)) == 0
    made = torch.from_numpy(run(op, *args, **named).copy())
    assert torch.equal(made.signbit()[zero], expected.signbit()[zero])


@pytest.mark.parametrize(
    "name", ["trunc", "frac", "signbit", "sgn", "isneginf", "isposinf", "nan_to_num", "isfinite"]
)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_one_tensor(name: str, data: st.DataObject, dtype: torch.dtype) -> None:
    agree(f"aten::{name}", data.draw(values(data.draw(SHAPES), dtype, special=True)))


@pytest.mark.parametrize("decimals", [0, 1, 3, -1, -2])
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_round_to_decimals(decimals: int, data: st.DataObject, dtype: torch.dtype) -> None:
    agree("aten::round.decimals", 100 * data.draw(values(data.draw(SHAPES), dtype)), decimals=decimals)


@pytest.mark.parametrize(("op", "named"), DIVISIONS)
@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_division_of_floats(op: str, named: dict[str, str], data: st.DataObject, dtype: torch.dtype) -> None:
    agree(op, *data.draw(broadcastable(dtype, special=False)), **named)


@pytest.mark.parametrize(("op", "named"), DIVISIONS)
def test_division_of_extremes(op: str, named: dict[str, str]) -> None:
    signs_too(op, EDGES[:, None], EDGES, **named)


@pytest.mark.parametrize(("op", "named"), DIVISIONS)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_of_integers(op: str, named: dict[str, str], dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 7, 8, 100, -7, -8, 5]).to(dtype)
    y = torch.tensor([1, 2, 3, -3, 127, -100]).to(dtype)
    agree(op, x[:, None], y, **named)
    agree(op, x, torch.tensor(3), **named)


@pytest.mark.parametrize(("op", "named"), [d for d in DIVISIONS if d[1] != {"rounding_mode": None}])
def test_an_integer_division_by_zero_is_the_hosts_error(op: str, named: dict[str, str]) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        run(op, torch.tensor([1, 2]), torch.tensor([1, 0]), **named)


@pytest.mark.parametrize("op", ["aten::copysign.Tensor", "aten::nextafter", "aten::heaviside"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_pairs_of_extremes(op: str, dtype: torch.dtype) -> None:
    signs_too(op, EDGES.to(dtype)[:, None], EDGES.to(dtype))


@pytest.mark.parametrize("op", ["aten::fmax", "aten::fmin"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_extremes_beside_nan(op: str, dtype: torch.dtype) -> None:
    agree(op, EDGES.to(dtype)[:, None], EDGES.to(dtype))


@given(data=st.data(), dtype=st.sampled_from(FLOATS))
def test_frexp(data: st.DataObject, dtype: torch.dtype) -> None:
    agree("aten::frexp.Tensor", data.draw(values(data.draw(SHAPES), dtype)))


@pytest.mark.parametrize("limits", [(), (1.5,), (0.0, 2.0, -2.0), (None, None, 7.0)])
@pytest.mark.parametrize("dtype", [*FLOATS, torch.int32])
def test_nan_to_num(limits: tuple[float | None, ...], dtype: torch.dtype) -> None:
    agree("aten::nan_to_num", EDGES.to(dtype), *limits)


@given(data=st.data(), dtype=st.sampled_from([*FLOATS, torch.int64]))
def test_threshold(data: st.DataObject, dtype: torch.dtype) -> None:
    agree("aten::threshold", data.draw(values(data.draw(SHAPES), dtype, special=True)), 1, -3)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool])
def test_integers_and_bool(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 2, 3, -1]).to(dtype)
    names = ["signbit", "sgn", "sign", "isneginf", "isposinf", "isfinite", "nan_to_num"]
    for name in names if dtype is torch.bool else [*names, "floor", "ceil", "round", "trunc"]:
        agree(f"aten::{name}", x)
    for op in ("aten::copysign.Tensor", "aten::fmax", "aten::fmin", "aten::heaviside"):
        agree(op, x, x.flip(0))


@pytest.mark.parametrize("op", ["floor_divide", "remainder", "fmod"])
def test_nothing_may_be_divided_by_zero(op: str) -> None:
    nothing, zero = torch.empty(0, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    agree(f"aten::{op}" if op == "floor_divide" else f"aten::{op}.Tensor", nothing, zero)
    x = nothing.to("fl")
    with flroute.enable("reference", fallback="error"):
        assert torch.take_along_dim(x, x, 0).shape == (0, 2)
