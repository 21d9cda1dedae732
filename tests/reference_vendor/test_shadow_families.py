"""No false alarm: the reference vendor's kernels are right in every family of models, by the tolerances there are."""

from __future__ import annotations

import pytest
import torch
from model_zoo import FAMILIES, made, moved, outcome, sow

import flroute


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the models' own
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_call_of_a_step_is_within_its_tolerance(family: str, dtype: torch.dtype) -> None:
    model, inputs = made(family)
    model.to(dtype).to("fl")
    there = moved({n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}, "fl")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with flroute.enable(device="reference", default_device=False), flroute.shadow(model) as s:
        for seed in range(2):
            sow(seed)
            optimizer.zero_grad()
            loss, _ = outcome(model, there)
            loss.backward()
            optimizer.step()
    assert s.ok, s
    assert not s.unjudged
    assert {str(row.phase) for row in s.rows()} == {"forward", "backward", "optimizer"}
