"""Where in a program calls are made: kept up while modules and optimizers tell when they begin and end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flroute.drift.shadow.ledger import Place
from flroute.routing.module_ranges import module_ranges
from flroute.routing.node_modules import mark_of_current_node, marked
from flroute.torch_compat import in_backward
from flroute.vocabulary import Phase


class Places:
    """The place of this moment, in one thread.

    Attributes:
        step: of the shadowed model.
        elsewhere: calls of modules in other threads.
    """

    def __init__(self) -> None:
        self.step = -1
        self._modules: list[str] = []
        self._optimizing = False
        self.elsewhere = 0
        self._thread = threading.current_thread()

    def here(self) -> Place:
        """Where a call is made that is made now."""
        if in_backward():
            mark = mark_of_current_node()
            return Place(self.step, mark.path_within([]) if mark is not None else None, Phase.BACKWARD)
        module = self._modules[-1] if self._modules else None
        phase = Phase.OPTIMIZER if self._optimizing and module is None else Phase.FORWARD
        return Place(self.step, module, phase)

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """Inside, modules and optimizers are listened to, in this thread."""
        self._thread = threading.current_thread()
        with ExitStack() as undo:
            undo.enter_context(marked())
            undo.enter_context(module_ranges(self._enter))
            undo.callback(register_optimizer_step_pre_hook(self._begin).remove)
            undo.callback(register_optimizer_step_post_hook(self._end).remove)
            yield

    def begin_step(self) -> None:
        """The model is called: whatever was under way is over."""
        self.step += 1
        self._optimizing = False

    def _enter(self, path: str) -> Callable[[], None]:
        if threading.current_thread() is not self._thread:
            self.elsewhere += 1
            return lambda: None
        self._modules.append(path)
        depth = len(self._modules)

        def leave() -> None:
            del self._modules[depth - 1 :]

        return leave

    def _begin(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if threading.current_thread() is self._thread:
            self._optimizing = True

    def _end(self, _optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if threading.current_thread() is self._thread:
            self._optimizing = False
