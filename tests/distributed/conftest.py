"""Real processes for the tests of collectives: torchrun, or one process a rank, on free ports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from launch import HERE, LONGEST, Ranks, Torchrun, environment, free_port

import flroute


@pytest.fixture
def torchrun(tmp_path: Path) -> Torchrun:
    """Run a script under torchrun; returns what its rank 0 found."""

    def run(ranks: int, script: Path, *arguments: str, **more: str) -> dict[str, Any]:
        found = tmp_path / "found.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run(
            [*command, str(script), *arguments], env=environment(FOUND=str(found), **more), capture_output=True, text=True,
            timeout=LONGEST, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        answer: dict[str, Any] = json.loads(found.read_text()) if found.exists() else {}
        answer["shown"] = done.stdout
        return answer

    return run


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    """Run one process for each rank of a script; returns what each printed. None is left when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def run(count: int, script: str, *arguments: str) -> list[str]:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
        started.extend(
            subprocess.Popen(
                [sys.executable, str(HERE / script), *arguments], env=environment(RANK=str(rank), **address),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(count)
        )  # fmt: skip
        outputs = [process.communicate(timeout=LONGEST) for process in started]
        return [out or err[-3000:] for out, err in outputs]

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    flroute.device("reference")  # registers the backend
    dist.init_process_group("flroute", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
