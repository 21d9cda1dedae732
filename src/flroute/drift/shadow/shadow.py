"""A model in the shadow of a reference: each of its calls is computed twice, and the difference noted."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from flroute import activation
from flroute.drift.reference import reference_of
from flroute.drift.shadow.contract import Contract
from flroute.drift.shadow.observer import Observer
from flroute.drift.shadow.one_op import Saver
from flroute.drift.shadow.places import Places
from flroute.drift.shadow.report import ShadowReport
from flroute.errors import ShadowError
from flroute.torch_compat import (
    BareDispatchMode,
    above_in_dispatch_stack,
    dispatch_stack_length,
    on_top_of_dispatch_stack,
)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.observers: list[Observer] = []


_thread = _Thread()


def innermost_observer() -> Observer | None:
    """The observer of the innermost shadow that is open in this thread."""
    return _thread.observers[-1] if _thread.observers else None


class ShadowMode(BareDispatchMode):
    """Sees the calls of one thread, and has an observer run those that concern a device."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._observer = observer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if types:  # a subclass of tensors sees to itself
            return func(*args, **(kwargs or {}))
        return self._observer.call(func, args, kwargs or {})


class _Steps:
    """Puts the mode in force for the steps that are looked at; a step begins where the model is called."""

    def __init__(
        self,
        model: torch.nn.Module,
        mode: ShadowMode,
        observer: Observer,
        places: Places,
        sample: float,
        seed: int,
    ) -> None:
        self._model, self._mode, self._observer, self._places = model, mode, observer, places
        self._sample, self._chance = sample, random.Random(seed)  # noqa: S311 -- which steps are looked at is no secret
        self._thread = threading.current_thread()
        self._depth = dispatch_stack_length()
        self._on = self._under_way = False

    def begin(self) -> None:
        """The scope opens."""
        if self._sample >= 1:
            self._switch(on=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, calls of the model are heard of. Nothing is hung on it: it may be copied, and saved whole."""
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        """The model is called; a call inside of its own call is no step."""
        if module is not self._model or self._under_way or threading.current_thread() is not self._thread:
            return
        self._under_way = True
        self._places.begin_step()
        if self._sample < 1:
            self._observer.carried.clear()
            self._switch(on=self._chance.random() < self._sample)

    def _leave(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        """The call is over, or has raised."""
        if module is self._model and threading.current_thread() is self._thread:
            self._under_way = False

    def end(self) -> None:
        """The scope closes."""
        self._switch(on=False)

    def _switch(self, *, on: bool) -> None:
        if on == self._on:
            return
        if on:
            with above_in_dispatch_stack(
                self._depth
            ):  # modes opened meanwhile stay on top, where they are left
                self._mode.__enter__()  # type: ignore[no-untyped-call]
        else:
            with on_top_of_dispatch_stack(self._mode):
                self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._on = on


def shadow(
    model: torch.nn.Module,
    reference: str = "host-float64",
    sample: float = 1.0,
    *,
    contract: bool = True,
    repeats: int = 1,
    save: str | os.PathLike[str] | None = None,
    seed: int = 0,
) -> AbstractContextManager[ShadowReport]:
    """Compute each call of a model on a device by a reference, too, and note how far the device is away.

    Forward, backward and optimizer are looked at, whoever calls the ops, in the thread that opens the block. Each op has two
    errors: the *local* one, against the reference on the device's own inputs, which is judged; and the *accumulated* one,
    against what the reference has made of its own values so far, which tells how errors build up. The model is not touched.

    Args:
        model: on a device; each of its calls begins a step.
        reference: ``"host-float64"``, ``"host"`` (in the device's dtypes), or another device, ``"vendor:0"``.
        sample: the share of steps that are looked at. Others cost nothing but what tells modules apart; below 1 accumulated
            errors start anew in each step that is looked at.
        contract: also check aliasing, strides, dtypes, version counters, in-place effects and determinism, once for each
            signature of an op.
        repeats: how often an op is run again to see whether its answer is the same; these calls are counted by the session.
        save: a folder in which to keep, as scripts of one op, the first call of each op that is beyond its tolerance, and the
            first that makes infinities or NaNs of finite numbers.
        seed: of the choice of steps.

    Returns:
        A context manager, whose value fills while the block runs.

    Raises:
        ShadowError: no such reference, or a sample that is not between 0 and 1.
        UnknownVendorError: no such vendor.

    Example:
        >>> import flroute, torch
        >>> model = torch.nn.Linear(4, 2).to("fl")
        >>> with flroute.enable(device="reference"), flroute.shadow(model) as s:
        ...     model(torch.ones(3, 4)).sum().backward()
        >>> s.ok, [row.op for row in s.rows()][:2]
        (True, ['aten::addmm', 'aten::sum'])
    """
    if not isinstance(model, torch.nn.Module):
        raise ShadowError(f"shadow() takes a torch.nn.Module, it was given {type(model).__name__}")
    if not 0 <= sample <= 1:
        raise ShadowError(f"sample={sample}: it is the share of steps that are looked at, between 0 and 1")
    activation.activate()
    places = Places()
    observer = Observer(
        reference_of(reference),
        places.here,
        Contract(repeats) if contract else None,
        Saver(save) if save is not None else None,
    )
    return _scope(model, observer, places, sample, seed)


@contextmanager
def _scope(
    model: torch.nn.Module, observer: Observer, places: Places, sample: float, seed: int
) -> Iterator[ShadowReport]:
    steps = _Steps(model, ShadowMode(observer), observer, places, sample, seed)
    with ExitStack() as undo:
        undo.enter_context(places.kept_up())
        undo.enter_context(steps.listening())
        _thread.observers.append(observer)
        undo.callback(_thread.observers.remove, observer)
        undo.callback(steps.end)
        undo.callback(observer.close)
        steps.begin()
        try:
            yield ShadowReport(observer.ledger, observer.reference)
        finally:
            observer.ledger.elsewhere = places.elsewhere
