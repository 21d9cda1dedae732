"""The autograd engine: whether it is at work, and how it is entered."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def in_backward() -> bool:
    """Whether the autograd engine is at work in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


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
