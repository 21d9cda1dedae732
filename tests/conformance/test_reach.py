"""How much of what PyTorch's own samples reach the reference vendor computes: forward and backward, in float32."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

import flroute

from .left_to_host import LEFT_TO_HOST
from .target import Target

SERVED = {"native", "decomposed", "view", "copy"}


def on_device(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return value
    return value.detach().to("fl").requires_grad_(value.requires_grad)


def run(op: Any, sample: Any) -> None:
    """Forward and backward. Whether results and errors are those of the host is judged by ``test_opinfo.py``."""
    with contextlib.suppress(Exception):
        first, args, kwargs = tree_map(on_device, (sample.input, list(sample.args), sample.kwargs))
        result = sample.output_process_fn_grad(op(first, *args, **kwargs))
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_nearly_everything_is_native_or_decomposed(target: Target) -> None:
    if target.name != "reference":
        pytest.skip(f"what {target.name} leaves to the host is its own affair")
    routes: dict[str, set[str]] = defaultdict(set)
    reasons: dict[str, str] = {}
    random.seed(0)
    torch.manual_seed(0)
    for op in op_db:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
        with flroute.enable("reference", fallback="allow", default_device=False) as session:
            for sample in samples:
                run(op, sample)
        for decision in session.decisions:
            routes[decision.op].add(str(decision.route))
            if decision.route == "fallback":
                reasons[decision.op] = f"{op.full_name}: {decision.detail}"
    reached = {op for op, seen in routes.items() if seen != {"host"}}
    served = {op for op in reached if routes[op] & SERVED and "fallback" not in routes[op]}
    assert len(reached) > 550
    assert len(served) >= 0.95 * len(reached), sorted(reached - served)
    new = {op: why for op, why in reasons.items() if op not in LEFT_TO_HOST}
    assert not new, f"these fall back: serve them, or name them in left_to_host.py with the reason: {new}"
    assert not LEFT_TO_HOST.keys() - reasons.keys(), (
        "these no longer fall back: take them out of left_to_host.py"
    )
