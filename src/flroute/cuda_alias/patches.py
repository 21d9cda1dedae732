"""Replacing attributes of modules and classes for as long as anybody needs it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from flroute.torch_compat import flags_may_be_set

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
        self._entered: set[str] = set()

    def __bool__(self) -> bool:
        """Whether they are in force."""
        return self._users > 0

    def acquire(self, patches: Iterable[Patch]) -> None:
        """Put the patches in force, or count one more user of those in force."""
        with self._lock:
            if self._users == 0:
                with ExitStack() as stack:
                    for patch in patches:
                        _apply(patch, stack)
                    self._undone_at_end = stack.pop_all()
            self._users += 1

    def release(self) -> None:
        """One user less; after the last every attribute is what it was."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._entered.clear()
                self._undone_at_end.close()

    def enter_once(self, name: str, make: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enter a context that holds until the patches end, unless one of that name was."""
        with self._lock:
            if self._users and name not in self._entered:
                self._undone_at_end.enter_context(make())
                self._entered.add(name)


in_force = PatchSet()
"""Those of this process."""


def _apply(patch: Patch, stack: ExitStack) -> None:
    owner = find(patch.owner)
    if owner is None or not hasattr(owner, patch.name):
        return  # of another release of PyTorch, or of a module that nobody imported
    if patch.make is None:
        stack.callback(_set_back, owner, patch.name, getattr(owner, patch.name))
        return
    saved = vars(owner).get(patch.name, _ABSENT)
    original = getattr(owner, patch.name) if saved is _ABSENT else saved
    made = patch.make(original)
    if isinstance(made, FunctionType):
        made = _while_in_force(made, original)
    stack.callback(_restore, owner, patch.name, saved)
    setattr(owner, patch.name, made)


def _while_in_force(made: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Modules that a script imports may keep what they found, and call it when the patches are gone."""

    @functools.wraps(made)
    def pass_on(*args: Any, **kwargs: Any) -> Any:
        return (made if in_force else original)(*args, **kwargs)

    return pass_on


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
