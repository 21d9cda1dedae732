"""Scaled dot product attention: the host's results, strides and refusals, out of ops that are routed one by one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

import flroute
from flroute.vendor import Kernel
from support import Vendors, decision_of, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

BY_HEAD, BY_POSITION, PACKED = "by head", "by position", "packed"
LAYOUTS = (BY_HEAD, BY_POSITION, PACKED)
VENDORS = ("reference", "opaque")


def heads(length: int, count: int, layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Host values of shape (2, count, length, 8)."""
    if layout == BY_HEAD:
        return torch.randn(2, count, length, 8, dtype=dtype)
    if layout == BY_POSITION:
        return torch.randn(2, length, count, 8, dtype=dtype).transpose(1, 2)
    packed = torch.randn(2, length, 3 * count * 8, dtype=dtype)
    return packed.chunk(3, -1)[1].unflatten(-1, (count, 8)).transpose(1, 2)


def on_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    whole = torch.as_strided(host, (host.untyped_storage().nbytes() // host.itemsize,), (1,), 0).to(device)
    return whole.as_strided(host.shape, host.stride(), host.storage_offset())


def both(inputs: list[torch.Tensor], vendor: str, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The output and the three gradients, each from the device and from the host."""
    device = torch.device(str(flroute.device(vendor)))
    ours = [on_device(t, device).requires_grad_() for t in inputs]
    theirs = [t.detach().requires_grad_() for t in inputs]
    moved = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    output, expected = (
        scaled_dot_product_attention(*ours, **moved),
        scaled_dot_product_attention(*theirs, **options),
    )
    cotangent = torch.rand_like(expected) + 0.5
    gradients = torch.autograd.grad(output, ours, cotangent.to(device))
    return list(
        zip((output, *gradients), (expected, *torch.autograd.grad(expected, theirs, cotangent)), strict=True)
    )


def assert_same(pairs: list[tuple[torch.Tensor, torch.Tensor]], **tolerance: float) -> None:
    for got, wanted in pairs:
        assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
        assert_close(got.cpu(), wanted, **tolerance)


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_and_gradients_are_laid_out_as_on_the_host(layout: str, vendor: str) -> None:
    pairs = both([heads(3, 4, layout), heads(5, 4, layout), heads(5, 4, layout)], vendor)
    assert_same(pairs)
    output, expected = pairs[0]
    if layout != BY_HEAD:  # what transformers do next: no copy, hence no reshape
        assert output.transpose(1, 2).view(2, 3, 32).shape == expected.transpose(1, 2).view(2, 3, 32).shape


MASKS: dict[str, dict[str, Any]] = {
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "float mask": {"attn_mask": torch.randn(3, 5)},
    "mask by head": {"attn_mask": torch.randn(2, 4, 3, 5)},
    "bool mask": {"attn_mask": torch.ones(3, 5, dtype=torch.bool).tril(1)},
    "nothing to see": {"attn_mask": torch.zeros(3, 5).index_fill_(0, torch.tensor([1]), -torch.inf)},
}


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("what", MASKS)
def test_masks(what: str, vendor: str) -> None:
    assert_same(
        both([heads(3, 4, BY_HEAD), heads(5, 4, BY_HEAD), heads(5, 4, BY_HEAD)], vendor, **MASKS[what])
    )


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_mask_that_is_causal_too(vendor: str) -> None:
    """Refused by PyTorch since 2.14: the device does what this release's host does."""
    inputs = [heads(length, 4, BY_HEAD) for length in (3, 5, 5)]
    mask = torch.randn(3, 5)
    try:
        scaled_dot_product_attention(*inputs, attn_mask=mask, is_causal=True)
    except RuntimeError as refused:
        device = torch.device(str(flroute.device(vendor)))
        moved = [t.to(device) for t in (*inputs, mask)]
        with pytest.raises(type(refused), match=re.escape(str(refused))):
            scaled_dot_product_attention(*moved, is_causal=True)
    else:
        assert_same(both(inputs, vendor, attn_mask=mask, is_causal=True))


@pytest.mark.parametrize("vendor", VENDORS)
def test_heads_that_share_keys_and_values(vendor: str) -> None:
    inputs = [heads(3, 4, BY_HEAD), *(heads(5, 2, BY_HEAD) for _ in range(2))]
    assert_same(both(inputs, vendor, enable_gqa=True))


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("what", ["plain", "causal", "float mask", "bool mask", "mask by head"])
def test_a_sequence_without_a_batch(what: str, layout: str, vendor: str) -> None:
    """Which PyTorch fuses since 2.14, heads shared or not."""
    options = dict(MASKS.get(what, {}))
    if what == "mask by head":
        options = {"attn_mask": options["attn_mask"][0]}
    query, key, value = (heads(length, 4, layout)[0] for length in (3, 5, 5))
    assert_same(both([query, key, value], vendor, **options))
    assert_same(both([query, key[:2], value[:2]], vendor, enable_gqa=True, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_accumulated_in_float32(dtype: torch.dtype) -> None:
    """One rounding, at the end: no further from the host than that."""
    inputs = [heads(64, 2, BY_HEAD, dtype) for _ in range(3)]
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 2 * torch.finfo(dtype).eps}
    assert_same(both(inputs, "reference"), **tolerance)


@pytest.mark.parametrize("inference", [False, True], ids=["no_grad", "inference"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}], ids=str)
def test_nothing_falls_back(options: dict[str, Any], inference: bool) -> None:
    x = torch.randn(1, 2, 4, 8)
    with flroute.enable("reference", fallback="error") as session:
        on_fl = x.to("fl").requires_grad_()
        scaled_dot_product_attention(on_fl, on_fl, on_fl, **options).sum().backward()
        hidden = torch.ones(4, 4, dtype=torch.bool)
        with torch.inference_mode(inference), torch.no_grad():
            scaled_dot_product_attention(on_fl, on_fl, on_fl, hidden)
    fused = decisions_of(session, "aten::_scaled_dot_product_flash_attention_for_cpu")
    assert {decision.route for decision in fused} == {"native"}


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.zeros(4, 4, dtype=torch.float64)},
        {"attn_mask": torch.zeros(4, 7)},
    ],
    ids=["mask of another dtype", "mask of another shape"],
)
def test_what_the_host_refuses_is_refused(options: dict[str, Any]) -> None:
    x = torch.randn(1, 2, 4, 8)
    with pytest.raises(RuntimeError) as expected:
        scaled_dot_product_attention(x, x, x, **options)
    moved = {k: v.to("fl") if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    with pytest.raises(type(expected.value)):
        scaled_dot_product_attention(x.to("fl"), x.to("fl"), x.to("fl"), **moved)


def test_the_users_choice_of_backend_holds() -> None:
    x = torch.randn(1, 2, 4, 8, device="fl", requires_grad=True)
    math = torch.nn.attention.SDPBackend.MATH
    with flroute.enable("reference", fallback="allow") as session, torch.nn.attention.sdpa_kernel(math):
        scaled_dot_product_attention(x, x, x)
    assert not [d for d in session.decisions if "flash" in d.op]


def test_it_can_be_compiled_and_mapped() -> None:
    x = torch.randn(3, 2, 4, 8)

    def attend(q: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, q, q)

    expected = attend(x)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x.to("fl")).cpu(), expected)
    assert_close(torch.vmap(attend)(x.to("fl")).cpu(), torch.vmap(attend)(x))


def test_a_vendors_fused_kernel_goes_first(vendors: Vendors) -> None:
    def sevens(
        query: Any, key: Any, value: Any, dropout_p: Any = 0.0, is_causal: Any = False,
        *, attn_mask: Any = None, scale: Any = None,
    ) -> Any:  # fmt: skip
        del key, value, dropout_p, is_causal, attn_mask, scale
        return np.full_like(query, 7), np.zeros(query.shape[:3], query.dtype)

    op = "aten::_scaled_dot_product_flash_attention_for_cpu"
    made = vendors(Kernel(op, named("sevens", sevens)))
    with flroute.enable(made.name, fallback="error", default_device=False) as session:
        x = made.put(torch.randn(1, 2, 4, 8))
        y = scaled_dot_product_attention(x, x, x)
    assert y.cpu().unique().tolist() == [7.0]
    assert decision_of(session, op).route == "native"
