"""A small model trained by several processes through torchrun has the losses of one process on the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from launch import HERE, LONGEST, Torchrun, environment, free_port
from train import STEPS, alone

TRAIN = HERE / "train.py"
CLOSE = 1e-5  # relative: sums of float32 in another order, through five steps of AdamW


@pytest.mark.parametrize(
    ("ranks", "how", "device"),
    [
        (2, "ddp", "fl:0"),
        (2, "fsdp", "fl:0"),
        pytest.param(2, "tensor_parallel", "fl:0", marks=pytest.mark.slow),
        *[pytest.param(4, how, "fl:0", marks=pytest.mark.slow) for how in ("ddp", "fsdp", "tensor_parallel")],
        *[pytest.param(2, how, "fl:2", marks=pytest.mark.slow) for how in ("ddp", "fsdp", "tensor_parallel")],
        *[pytest.param(4, how, "fl:2", marks=pytest.mark.slow) for how in ("ddp", "fsdp", "tensor_parallel")],
    ],
)
def test_the_losses_are_those_of_one_process(torchrun: Torchrun, ranks: int, how: str, device: str) -> None:
    found = torchrun(ranks, TRAIN, how, "flroute", device)
    assert found["losses"] == pytest.approx(alone(), rel=CLOSE)
    assert len(found["losses"]) == STEPS
    needed = {
        "ddp": {"c10d::allreduce_", "c10d::broadcast_"},
        "fsdp": {"c10d::_allgather_base_", "c10d::_reduce_scatter_base_"},
        "tensor_parallel": {"c10d::allreduce_", "c10d::scatter_"},
    }[how]
    assert needed <= found["collectives"].keys()
    for op in needed:
        route, kernel, detail, calls, nbytes = found["collectives"][op]
        assert (route, kernel) == ("copy", f"fl/gloo:{op.removeprefix('c10d::')}")
        assert detail == ("on the device's own memory" if device == "fl:0" else "through a copy on the host")
        assert calls > 0
        assert nbytes > 0 or op in ("c10d::scatter_", "c10d::broadcast_")


@pytest.mark.slow
def test_with_another_backend_for_the_host(torchrun: Torchrun) -> None:
    found = torchrun(2, TRAIN, "ddp", "cpu:gloo,fl:flroute", "fl:0")
    assert found["losses"] == pytest.approx(alone(), rel=CLOSE)


@pytest.mark.slow
def test_a_checkpoint_saved_on_four_ranks_resumes_on_two(torchrun: Torchrun, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    begun = torchrun(4, TRAIN, "save", "flroute", "fl:0", CHECKPOINT=folder)
    went_on = torchrun(2, TRAIN, "resume", "flroute", "fl:0", CHECKPOINT=folder)
    assert begun["losses"] + went_on["losses"] == pytest.approx(alone(), rel=CLOSE)


@pytest.mark.slow
def test_two_hosts_are_two_agents_with_one_meeting_point(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=test", str(TRAIN), "ddp", "flroute", "fl:0",
    ]  # fmt: skip
    agents = [
        subprocess.Popen(command, env=environment(FOUND=str(found)), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        errors = [agent.communicate(timeout=LONGEST)[1] for agent in agents]
        assert [agent.returncode for agent in agents] == [0, 0], errors[0][-2000:]
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
    assert "c10d::allreduce_" in found.read_text()
