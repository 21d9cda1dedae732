"""The page about many devices says what the table of collectives says, and what it shows works; so does the example."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from launch import HERE, Torchrun

from flroute.distributed import page
from flroute.distributed.collectives import COLLECTIVES
from flroute.torch_compat import collective_ops
from flroute.vendor import Kernel, kernel
from support import Vendors, throw_away_vendors

ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "distributed.md"

vendors = pytest.fixture(throw_away_vendors)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page.to_markdown(), (
        "docs/distributed.md is out of date: python -m flroute.distributed.page > docs/distributed.md"
    )


def test_it_has_a_row_for_each_collective_and_its_public_name_exists() -> None:
    rows = re.findall(r"^\| ([^|]+) \| `(c10d::\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert [op for _, op in rows] == list(COLLECTIVES)
    for names, op in rows:
        name = re.split(r"[ ,]", names)[0]
        if op not in collective_ops():  # another release has it
            continue
        assert hasattr(dist, name) or hasattr(dist.distributed_c10d, name), name


class Job:
    def __init__(self, array: Any) -> None:
        self.array = array

    def wait(self) -> None:
        self.array += 10


class Link:
    """What the page's kernel talks to."""

    def start_sum(self, array: Any) -> Job:
        return Job(array)


@pytest.mark.usefixtures("one_rank")
def test_the_kernel_on_the_page_works(vendors: Vendors) -> None:
    (source,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "@kernel" in block
    ]
    names: dict[str, Any] = {"link_of": lambda group: Link(), "kernel": kernel}
    exec(source, names)
    found = [k for k in names["allreduce"].__flroute_kernels__ if isinstance(k, Kernel)]
    made = vendors(*found)
    x = made.put(torch.zeros(2))
    dist.all_reduce(x)
    assert x.cpu().tolist() == [10, 10]
    dist.all_reduce(x, op=dist.ReduceOp.MAX)  # refused: gloo's
    assert x.cpu().tolist() == [10, 10]


def test_the_example_runs_under_torchrun(torchrun: Torchrun, tmp_path: Path) -> None:
    shown = torchrun(2, ROOT / "examples" / "train_ddp.py")["shown"]
    loss = re.search(r"2 processes, loss after 40 steps: ([\d.]+)", shown)
    assert loss is not None, shown
    assert float(loss[1]) < 0.5
    assert re.search(r"c10d::allreduce_: \d+ calls, [\d,]+ bytes, by fl/gloo:allreduce_", shown)
