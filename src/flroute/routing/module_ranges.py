"""When each module was under way, told while somebody listens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from flroute.routing.module_paths import path_of

Enter = Callable[[str], Callable[[], None]]
"""Told of the path of a module that is called; what it returns is called when the module is left."""


class _Thread(threading.local):
    def __init__(self) -> None:
        self.under_way: list[tuple[torch.nn.Module, Callable[[], None]]] = []  # outermost first


@contextmanager
def module_ranges(enter: Enter) -> Iterator[None]:
    """Inside, ``enter`` is told of each call of a module, in every thread; an error that leaves a module ends its range, too."""
    thread = _Thread()

    def entered(module: torch.nn.Module, _args: Any) -> None:
        if torch.compiler.is_compiling():  # Dynamo would make it part of the graph
            return
        modules = [module, *(outer for outer, _ in reversed(thread.under_way))]
        thread.under_way.append((module, enter(path_of(modules) or type(module).__name__)))

    def left(module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if torch.compiler.is_compiling() or all(other is not module for other, _ in thread.under_way):
            return  # the second: entered before anybody listened
        while True:  # what is inside and was never left ends with it
            other, leave = thread.under_way.pop()
            leave()
            if other is module:
                return

    handles = register_module_forward_pre_hook(entered), register_module_forward_hook(left, always_call=True)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        while thread.under_way:
            thread.under_way.pop()[1]()
