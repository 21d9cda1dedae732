"""The unmodified reference vendor passes on every family of models, with the tolerances there are by default."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import flroute

sys.path.append(str(Path(__file__).parent.parent / "reference_vendor"))

from model_zoo import FAMILIES, made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_passes(family: str, dtype: torch.dtype) -> None:
    model, inputs = made(family)
    model = model.to(dtype)
    inputs = {name: t.to(dtype) if t.is_floating_point() else t for name, t in inputs.items()}
    found = flroute.compare(model, inputs, a="reference")
    assert found.passed, str(found)
    assert len(found.ops) > 20
    judged = [op for op in found.ops if op.local is not None]
    assert len(judged) > 0.98 * len(found.ops), {op.op: op.unjudged for op in found.ops if op.local is None}
