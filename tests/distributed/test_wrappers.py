"""DDP in its forms, SyncBatchNorm and FSDP2 of a host model have the gradients that the host's gloo has."""

from __future__ import annotations

import pytest
from launch import HERE, Torchrun
from wrappers import CASES, RANKS

CLOSE = 1e-5  # of the largest: the same sums of float32 in another order


@pytest.mark.parametrize("device", ["fl:0", pytest.param("fl:2", marks=pytest.mark.slow)])
def test_gradients_are_the_hosts(torchrun: Torchrun, device: str) -> None:
    found = torchrun(RANKS, HERE / "wrappers.py", device)
    for name in CASES:
        ours, theirs = found[name]
        assert len(ours) == len(theirs) > 0, name
        for got, wanted in zip(ours, theirs, strict=True):
            size = max(map(abs, wanted), default=0)
            assert got == pytest.approx(wanted, abs=CLOSE * max(size, 1)), name
    unused = found["unused"][0]
    assert [bool(gradient) for gradient in unused] == [True] * 4 + [False] * 2, "used by nobody: no gradient"
