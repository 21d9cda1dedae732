"""How a function of PyTorch's is replaced: by the device's own of that name, by itself with other arguments, or by a refusal."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.facade import facade
from flroute.cuda_alias.ordinals import ALIAS
from flroute.device.table import DEVICE_TYPE
from flroute.errors import AliasError

Make = Callable[[Any], Any]
_PLACES = frozenset({"device", "peer_device"})


def mirrored(name: str, theirs: Any) -> Make:
    """The device's own, for whom cuda is not PyTorch's business; numbers are cuda's."""

    def make(original: Any) -> Any:
        if isinstance(original, type) and isinstance(theirs, type):
            return facade(theirs, _counted(name, theirs))
        return answered(name, _counted(name, theirs))(original) if callable(theirs) else theirs

    return make


def answered(name: str, answer: Callable[..., Any]) -> Make:
    """``answer`` for everybody but PyTorch and flroute, who get the truth."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def either(*args: Any, **kwargs: Any) -> Any:
            frame = asker(1)
            if is_own(frame):
                return original(*args, **kwargs)
            current().uses.add(name, frame)
            return answer(*args, **kwargs)

        return either

    return make


def _counted(name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """With places in terms of cuda."""
    parameters = list(inspect.signature(theirs).parameters)
    at = [index for index, parameter in enumerate(parameters) if parameter in _PLACES]

    @functools.wraps(theirs)
    def call(*args: Any, **kwargs: Any) -> Any:
        ordinals = current().ordinals
        placed = [ordinals.device(arg) if index in at else arg for index, arg in enumerate(args)]
        named = {key: ordinals.device(arg) if key in _PLACES else arg for key, arg in kwargs.items()}
        return theirs(*placed, **named)

    return call


def translated(name: str) -> Make:
    """The same function, called with the device wherever an argument names cuda."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return original(*_meant(name, args), **dict(zip(kwargs, _meant(name, kwargs.values()), strict=True)))

        return call

    return make


def _meant(name: str, values: Any) -> list[Any]:
    alias = current()
    meant = [value if isinstance(value, int) else alias.ordinals.device(value) for value in values]
    if any(one is not other for one, other in zip(values, meant, strict=True)):
        alias.uses.add(name, asker(2))
    return meant


def of_type(name: str) -> Make:
    """The same function, whose arguments are types of devices: ``"fl"`` where one is ``"cuda"``."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if ALIAS in args or ALIAS in kwargs.values():
                current().uses.add(name, asker(1))
                args = tuple(DEVICE_TYPE if arg == ALIAS else arg for arg in args)
                kwargs = {key: DEVICE_TYPE if arg == ALIAS else arg for key, arg in kwargs.items()}
            return original(*args, **kwargs)

        return call

    return make


def accepted(name: str, why: str) -> Make:
    """Nothing, and a line in the log the first time."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(*_args: Any, **_kwargs: Any) -> None:
            uses = current().uses
            uses.add(name, asker(1))
            uses.say_once(name, why)

        return call

    return make


def refused(name: str, why: str) -> Make:
    """An error that says why."""

    def make(original: Any) -> Any:
        def refuse(*_args: Any, **_kwargs: Any) -> Any:
            raise AliasError(f"{name} is not there: {why}. flroute runs {ALIAS!r} on {current().ordinals.first.name}")

        if isinstance(original, type):
            return facade(original, refuse)
        return functools.wraps(original)(refuse)

    return make
