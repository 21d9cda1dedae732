"""Replacing attributes of modules and classes for as long as anybody needs it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

_ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """One attribute that is replaced, and with what.

    Attributes:
        owner: the module, or module and class, that has it, ``torch.cuda`` or ``torch.amp.GradScaler``.
        name: of the attribute.
        make: the replacement, from what is there.
        meaning: in words, for the documentation.
    """

    owner: str
    name: str
    make: Callable[[Any], Any]
    meaning: str = ""


class PatchSet:
    """Patches in force from the first ``acquire`` to the last ``release``, from whichever threads these come."""

    def __init__(self, patches: Callable[[], Iterable[Patch]]) -> None:
        self._patches = patches
        self._lock = threading.Lock()
        self._users = 0
        self._saved: list[tuple[Any, str, Any]] = []

    def acquire(self) -> None:
        """Put the patches in force, or count one more user of those in force."""
        with self._lock:
            if self._users == 0:
                try:
                    for patch in self._patches():
                        self._apply(patch)
                except BaseException:
                    self._restore()
                    raise
            self._users += 1

    def release(self) -> None:
        """One user less; after the last every attribute is what it was."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._restore()

    def _apply(self, patch: Patch) -> None:
        owner = find(patch.owner)
        if owner is None or not hasattr(owner, patch.name):
            return  # of another release of PyTorch, or of a module that nobody imported
        saved = vars(owner).get(patch.name, _ABSENT)
        made = patch.make(getattr(owner, patch.name))
        self._saved.append((owner, patch.name, saved))
        setattr(owner, patch.name, made)

    def _restore(self) -> None:
        while self._saved:
            owner, name, saved = self._saved.pop()
            if saved is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, saved)


def find(dotted: str) -> Any | None:
    """A module that is imported, or a class in one; ``None`` if it is not."""
    module, _, name = dotted.rpartition(".")
    if dotted in sys.modules:
        return sys.modules[dotted]
    return getattr(find(module), name, None) if module else None
