"""Stand-ins for types: making one goes another way, what they are an instance of stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flroute.cuda_alias.patches import in_force
from flroute.torch_compat import skip_in_dynamo

_MAY_BE_A_BASE = 1 << 10
"""Py_TPFLAGS_BASETYPE"""


class Facade(type):
    """The type of stand-ins; a subclass of a stand-in is made like any other class."""

    _stands_for: type
    _original: type
    _make: Callable[..., Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make one, or what stands for it."""
        if "_make" in cls.__dict__:
            return (cls._make if in_force else cls._original)(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        if "_make" in cls.__dict__:
            return isinstance(instance, cls._stands_for)
        return super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        if "_make" in cls.__dict__:
            return issubclass(subclass, cls._stands_for)
        return super().__subclasscheck__(subclass)


skip_in_dynamo(Facade.__call__)


def facade(original: type, make: Callable[..., Any], stands_for: type | None = None) -> type:
    """A stand-in for ``original``, whose call is ``make`` while the patches are in force.

    Args:
        original: what it takes the place of, and what its call is afterwards.
        make: makes one.
        stands_for: the type of what ``make`` makes, if that is another.

    Example:
        >>> Text = facade(str, lambda value: f"<{value}>")
        >>> Text(1), isinstance("a", Text), issubclass(Text, str)
        ('1', True, True)
        >>> in_force.acquire([])
        >>> Text(1)
        '<1>'
        >>> in_force.release()
    """
    stands_for = original if stands_for is None else stands_for
    names = {
        "_stands_for": stands_for,
        "_original": original,
        "_make": staticmethod(make),
        "__doc__": stands_for.__doc__,
        "__module__": stands_for.__module__,
    }
    bases = (stands_for,) if type(stands_for) is type and stands_for.__flags__ & _MAY_BE_A_BASE else ()
    return Facade(stands_for.__name__, bases, names)
