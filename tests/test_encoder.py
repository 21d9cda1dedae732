"""The fast path of PyTorch's own transformer modules in eval: the host's numbers, out of ops that are routed one by one."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import flroute
from flroute.errors import DeviceError
from support import decision_of

KEYS = torch.tensor([[False, False, True], [False, True, True]])
MASKS: dict[str, tuple[torch.Tensor | None, int | None]] = {
    "none": (None, None),
    "pairs": (torch.ones(3, 3, dtype=torch.bool).triu(1), 0),
    "pairs as numbers": (torch.full((3, 3), -torch.inf).triu(1), 0),
    "keys": (KEYS, 1),
    "scores": (torch.tensor([True, False, False]).expand(2, 2, 3, 3), 2),
    "a row that sees nothing": (torch.ones(2, 3, dtype=torch.bool), 1),
}


@pytest.fixture(params=["reference", "opaque", "no session"])
def on_device(request: pytest.FixtureRequest) -> tuple[torch.device, Callable[[], Any]]:
    vendor = request.param
    if vendor == "no session":
        return torch.device("fl:0"), contextlib.nullcontext
    options = {"fallback": "error" if vendor == "reference" else "allow", "default_device": False}
    return torch.device(str(flroute.device(vendor))), lambda: flroute.enable(vendor, **options)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("need_weights", "average"), [(False, True), (True, True), (True, False)])
def test_attention(name: str, need_weights: bool, average: bool, on_device: Any) -> None:
    mask, mask_type = MASKS[name]
    torch.manual_seed(0)
    device, session = on_device
    weights = [torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)]
    inputs = torch.randn(3, 2, 3, 8)
    for positions in ((0, 0, 0), (0, 1, 2)):
        outcomes = []
        for place in ("cpu", device):
            moved = {i: inputs[i].to(place) for i in set(positions)}
            with contextlib.nullcontext() if place == "cpu" else session():
                outcomes.append(
                    torch._native_multi_head_attention(
                        *(moved[i] for i in positions), 8, 2, *(w.to(place) for w in weights),
                        None if mask is None else mask.to(place), need_weights, average, mask_type,
                    )
                )  # fmt: skip
        (output, seen), (expected, expected_seen) = outcomes[1], outcomes[0]
        assert_close(output.cpu(), expected, equal_nan=True)
        assert (seen is None) == (expected_seen is None) == (not need_weights)
        if need_weights:
            assert_close(seen.cpu(), expected_seen, equal_nan=True)


def test_a_mask_without_its_type_is_refused_as_on_the_host() -> None:
    weights = [torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)]
    x = torch.randn(2, 3, 8)
    for place in ("cpu", "fl"):
        there = x.to(place)
        with pytest.raises(RuntimeError, match="Mask Type should be defined"):
            torch._native_multi_head_attention(
                there, there, there, 8, 2, *(w.to(place) for w in weights), KEYS.to(place)
            )


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")  # the host's
def test_an_encoder_in_eval(activation: str, norm_first: bool, padded: bool, on_device: Any) -> None:
    """Where padding is, the host may give zeros and no device without nested tensors does: only words are compared."""
    device, session = on_device
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        8, 2, 16, activation=activation, norm_first=norm_first, batch_first=True
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    there = copy.deepcopy(model).to(device)
    x, padding = torch.randn(2, 3, 8), KEYS if padded else None
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with session() as opened:
            answer = there(x.to(device), src_key_padding_mask=None if padding is None else padding.to(device))
    words = ~KEYS if padded else torch.ones(2, 3, dtype=torch.bool)
    assert_close(answer.cpu()[words], expected[words])
    if opened is not None:
        assert decision_of(opened, "aten::_transformer_encoder_layer_fwd").route == "decomposed"


def test_an_encoder_told_not_to_check_its_masks(on_device: Any) -> None:
    device, session = on_device
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, mask_check=False).eval().to(device)
    with torch.no_grad(), session(), pytest.raises(DeviceError, match="enable_nested_tensor=False"):
        model(torch.randn(2, 3, 8).to(device), src_key_padding_mask=KEYS.to(device))
