"""What counting and timing every call costs: a session against the same router with counting compiled out.

The source of the hot path and of the views is compiled a second time without the lines that count, and the general path's
counting is left out; sessions opened then route as ever and count nothing. Both in turn, in one process, on one thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from routing import mlp_step

import flroute
from flroute.benchmark.timing import compare
from flroute.routing import device_ops, hot_path, plans, router

ROUNDS = 25
_COUNTS = "        tick()\n"


def without_counting(module: ModuleType) -> ModuleType:
    """The module, compiled without the lines that count."""
    source = inspect.getsource(module)
    assert _COUNTS in source, f"{module.__name__} counts in another way now"
    made = ModuleType(module.__name__)
    made.__dict__.update({name: value for name, value in vars(module).items() if name.startswith("__")})
    exec(compile(source.replace(_COUNTS, ""), inspect.getfile(module), "exec"), made.__dict__)  # noqa: S102
    return made


_bare_hot_path, _bare_device_ops = without_counting(hot_path), without_counting(device_ops)


def _uncounted(_router: router.Router, _counts: Any, plan: plans.Plan) -> plans.Plan:
    return plan


@contextmanager
def uncounted_session() -> Iterator[flroute.Session]:
    """A session whose calls are routed as ever and not counted."""
    with (
        patch.object(plans, "hot_path", _bare_hot_path),
        patch.object(router, "view_handler", _bare_device_ops.view_handler),
        patch.object(router.Router, "counted", _uncounted),
        flroute.enable(device="reference", default_device=False) as session,
    ):
        yield session


def check() -> None:
    """Counting is compiled out, and nothing else."""
    x = torch.randn(4, 4).to("fl")
    with uncounted_session() as session:
        for _ in range(100):
            y = x.add(x).t()
    assert torch.equal(y.cpu(), (x.cpu() * 2).t())
    assert sum(d.calls for d in session.decisions if d.op == "aten::add.Tensor") == 0
    assert sum(d.calls for d in session.decisions if d.op == "aten::t") == 1, (
        "the first, outside the loop that counts"
    )


def main() -> None:
    """Print one row per case."""
    torch.set_num_threads(1)
    check()
    x, step = torch.randn(4, 4).to("fl"), mlp_step("fl")
    cases = [("add 4x4", lambda: x.add(x), 2000), ("view", lambda: x.view(16), 2000), ("MLP step", step, 20)]
    print(f"{'case':20}{'session':>12}{'session us':>12}{'bare us':>12}{'ratio':>8}{'goal':>8}")
    for name, work, calls in cases:
        for kind, settings, goal in (("counted", {}, 1.05), ("timed", {"timing": True}, 1.25)):
            session = partial(flroute.enable, device="reference", default_device=False, **settings)
            ours, bare, ratio = compare(
                work, work, calls, rounds=ROUNDS, session=session, around_baseline=uncounted_session
            )
            print(f"{name:20}{kind:>12}{ours:12.2f}{bare:12.2f}{ratio:8.3f}{goal:8.2f}")


if __name__ == "__main__":
    main()
