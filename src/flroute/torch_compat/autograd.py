"""The autograd engine: whether it is at work, and how it is entered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

BACKWARD_CALL = torch.autograd.graph._engine_run_backward.__code__
"""The frame of each backward pass: what is above it runs in a node."""
ENGINE_ENTRIES = (
    ("torch.autograd.graph", "_engine_run_backward"),
    ("torch.autograd", "_engine_run_backward"),
)
"""Where PyTorch keeps the function that enters the engine: owner and name."""
next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number that the next autograd node of this thread will have."""


def in_backward() -> bool:
    """Whether the autograd engine is at work in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def current_node() -> Any | None:
    """The autograd node whose backward runs in this thread."""
    return torch._C._current_autograd_node() if in_backward() else None


_OF_LEAVES = 2**64 - 1  # Node::sequence_nr of AccumulateGrad: they run as soon as they can


def sequence_number(node: Any) -> int | None:
    """Which of its thread's autograd nodes this is, in the order made; ``None`` for those that take up gradients of leaves."""
    number = int(node._sequence_nr())
    return None if number == _OF_LEAVES else number


@contextmanager
def single_threaded_backward(_roots: Any = ()) -> Iterator[None]:
    """Backward passes started inside run in the calling thread."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


def increment_versions(tensors: Any, result: Any) -> Any:
    """Bump the version counters of a list of tensors that were written; returns ``result``."""
    counted = [t for t in tensors if not t.is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)
    return result


def wrap_backward(around: Callable[[Any], Any]) -> None:
    """Run every backward pass inside ``around(roots)``, a context manager; a root is a tensor or a ``GradientEdge``.

    ``torch.autograd`` imports the name from ``torch.autograd.graph``: both are replaced.
    """
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_inside(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with around(t_outputs):
            return run(t_outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = run_inside
    torch.autograd._engine_run_backward = run_inside  # type: ignore[attr-defined]
