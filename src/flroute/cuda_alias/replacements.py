"""How a function of PyTorch's is replaced: by the device's own of that name, by itself with other arguments, or by a refusal."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.callers import asker, is_own
from flroute.cuda_alias.facade import facade
from flroute.cuda_alias.ordinals import ALIAS
from flroute.device.table import DEVICE_TYPE
from flroute.errors import AliasError

Make = Callable[[Any], Any]
_PLACES = frozenset({"device", "peer_device"})


def mirrored(name: str, theirs: Callable[..., Any]) -> Make:
    """The device's own function or type, told in terms of cuda where it is to work."""

    def make(original: Any) -> Any:
        call = _in_terms_of_cuda(theirs)
        if not isinstance(theirs, type):
            return answered(name, call)(original)

        def make_one(*args: Any, **kwargs: Any) -> Any:
            current().uses.add(name, asker(1))
            return call(*args, **kwargs)

        return facade(original, make_one, theirs)

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


def _in_terms_of_cuda(theirs: Callable[..., Any]) -> Callable[..., Any]:
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
            return original(
                *_meant(name, args), **dict(zip(kwargs, _meant(name, kwargs.values()), strict=True))
            )

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
            if any(_is_alias(arg) for arg in (*args, *kwargs.values())):
                current().uses.add(name, asker(1))
                args = tuple(DEVICE_TYPE if _is_alias(arg) else arg for arg in args)
                kwargs = {key: DEVICE_TYPE if _is_alias(arg) else arg for key, arg in kwargs.items()}
            return original(*args, **kwargs)

        return call

    return make


def _is_alias(value: Any) -> bool:
    return isinstance(value, str) and value == ALIAS


class SetWithoutEffect:
    """A flag of CUDA's libraries: kept, counted and logged when it is set, and of no consequence."""

    def __init__(self, name: str, original: Any) -> None:
        self._name, self._original = name, original

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Its value."""
        return self._original.__get__(instance, owner)

    def __set__(self, instance: Any, value: Any) -> None:
        """Keep another one."""
        _say_of_flag(self._name, value, asker(1))
        self._original.__set__(instance, value)


def flag(name: str) -> Make:
    """A flag that is a descriptor."""
    return lambda original: SetWithoutEffect(name, original)


def flags_of(name: str) -> Make:
    """A ``__setattr__`` all of whose attributes are flags."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def set_flag(self: Any, attribute: str, value: Any) -> None:
            _say_of_flag(f"{name}.{attribute}", value, asker(1))
            original(self, attribute, value)

        return set_flag

    return make


def _say_of_flag(name: str, value: Any, frame: FrameType) -> None:
    if is_own(frame):
        return
    current().uses.add(name, frame)
    current().uses.say_once(
        name, f"accepted as {value!r}; it is about CUDA's libraries and without effect here"
    )


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
            raise AliasError(
                f"{name} is not there: {why}. flroute runs {ALIAS!r} on {current().ordinals.first.name}"
            )

        if isinstance(original, type):
            return facade(original, refuse)
        return functools.wraps(original)(refuse)

    return make
