"""Replacing attributes of modules and classes for as long as anybody needs it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from flroute.torch_compat import flags_may_be_set, not_traced

_ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """One attribute that is replaced, and with what.

    Attributes:
        owner: the module, or module and class, that has it, ``torch.cuda`` or ``torch.amp.GradScaler``.
        name: of the attribute.
        make: the replacement, from what is there; ``None`` where it stays, and what a script sets is undone at the end.
        meaning: in words, for the documentation.
        refuses: whether it is there to say why it is not.
    """

    owner: str
    name: str
    make: Callable[[Any], Any] | None
    meaning: str = ""
    refuses: bool = False


class PatchSet:
    """Patches in force from the first ``acquire`` to the last ``release``, from whichever threads these come."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users = 0
        self._undone_at_end = ExitStack()
        self._replaced: list[_Replaced] = []
        self._entered: set[str] = set()

    def __bool__(self) -> bool:
        """Whether they are in force."""
        return self._users > 0

    def acquire(self, patches: Iterable[Patch]) -> None:
        """Put the patches in force, or count one more user of those in force."""
        with self._lock:
            if self._users == 0:
                with ExitStack() as stack:
                    self._apply(patches, stack)
                    self._undone_at_end = stack.pop_all()
            self._users += 1

    def _apply(self, patches: Iterable[Patch], stack: ExitStack) -> None:
        self._replaced.extend(done for patch in patches if (done := _apply(patch, stack)) is not None)

    def release(self) -> None:
        """One user less; after the last every attribute is what it was."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._entered.clear()
                self._replaced.clear()
                self._undone_at_end.close()

    def enter_once(self, name: str, make: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enter a context that holds until the patches end, unless one of that name was."""
        with self._lock:
            if self._users and name not in self._entered:
                self._undone_at_end.enter_context(make())
                self._entered.add(name)

    def apply_once(self, name: str, patches: Iterable[Patch]) -> None:
        """More patches, until those in force end, unless some of that name were."""
        with self._lock:
            if self._users and name not in self._entered:
                self._apply(patches, self._undone_at_end)
                self._entered.add(name)

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Inside, every attribute is what it was, in all threads: for modules that keep what they find when they are imported."""
        with self._lock:
            for done in reversed(self._replaced):
                _restore(done.owner, done.name, done.original)
            try:
                yield
            finally:
                for done in self._replaced:
                    setattr(done.owner, done.name, done.made)


in_force = PatchSet()
"""Those of this process."""


@dataclass(frozen=True)
class _Replaced:
    """What a patch did: the attribute ``name`` of ``owner`` was ``original``, if it had one of its own, and is ``made``."""

    owner: Any
    name: str
    original: Any
    made: Any


def _apply(patch: Patch, stack: ExitStack) -> _Replaced | None:
    owner = find(patch.owner)
    if owner is None or not hasattr(owner, patch.name):
        return None  # of another release of PyTorch, or of a module that nobody imported
    if patch.make is None:
        stack.callback(_set_back, owner, patch.name, getattr(owner, patch.name))
        return None
    saved = vars(owner).get(patch.name, _ABSENT)
    original = getattr(owner, patch.name) if saved is _ABSENT else saved
    made = patch.make(original)
    if isinstance(made, FunctionType):
        made = _while_in_force(made, original)
        made.replaces = f"{patch.owner}.{patch.name}"
    stack.callback(_restore, owner, patch.name, saved)
    setattr(owner, patch.name, made)
    return _Replaced(owner, patch.name, saved, made)


def _while_in_force(made: Callable[..., Any], original: Callable[..., Any]) -> Any:
    """Modules that a script imports may keep what they found, and call it when the patches are gone."""

    @functools.wraps(made)
    def pass_on(*args: Any, **kwargs: Any) -> Any:
        return (made if in_force else original)(*args, **kwargs)

    return not_traced(pass_on)


def _restore(owner: Any, name: str, saved: Any) -> None:
    if saved is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, saved)


def _set_back(owner: Any, name: str, value: Any) -> None:
    if getattr(owner, name) != value:
        with flags_may_be_set():
            setattr(owner, name, value)


def find(dotted: str) -> Any | None:
    """A module that is imported, or a class in one; ``None`` if it is not."""
    module, _, name = dotted.rpartition(".")
    if dotted in sys.modules:
        return sys.modules[dotted]
    return getattr(find(module), name, None) if module else None
