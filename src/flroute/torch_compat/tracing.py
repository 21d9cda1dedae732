"""What Dynamo knows of the code that it traces, and how to say something else to it.

``tx`` is Dynamo's word for the translator of one frame.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType
from typing import Any, NoReturn

import torch

from flroute.torch_compat.names import DYNAMO_NAMES

DYNAMO = "torch._dynamo"
_PASS_ON = ("torch/_dynamo/polyfills/", "__torch_function__")
"""Code that asks for somebody else: what Dynamo traces in place of functions in C, and modes."""


def place_in_dynamo(name: str) -> tuple[str, str]:
    """The class, by its dotted name, that has the method ``name`` of ``DYNAMO_NAMES``, and the method's own name."""
    found = next(dotted for dotted in DYNAMO_NAMES if dotted.endswith(f".{name}"))
    owner, _, attribute = found.rpartition(".")
    return owner, attribute


def asking_line(tx: Any) -> tuple[str, int]:
    """The file and the line of the code that is traced and asks."""
    while getattr(tx, "parent", None) is not None and _passes_on(tx.f_code):
        tx = tx.parent
    return tx.f_code.co_filename, tx.lineno


def _passes_on(code: Any) -> bool:
    return code.co_name == _PASS_ON[1] or _PASS_ON[0] in code.co_filename


def call_from(file: str, line: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, whose caller is, for all it can see, the code at this line of this file.

    Example:
        >>> import sys
        >>> call_from("train.py", 7, lambda: sys._getframe(1).f_lineno)
        7
    """
    code = _caller.__code__.replace(co_filename=file, co_firstlineno=line - 1)
    return FunctionType(code, {})(function, args, kwargs)


def _caller(function: Any, args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def traced_constant(tx: Any, value: Any) -> Any:
    """``value``, as traced code is to see it."""
    from torch._dynamo.variables import VariableTracker

    return VariableTracker.build(tx, value)


def traced_function(variable: Any) -> Any:
    """The function that traced code calls: one that Dynamo follows, or leaves alone."""
    return variable.fn if hasattr(variable, "fn") else variable.value


def constants_in(args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]] | None:
    """The values of traced arguments; ``None`` where one is known only when the code runs."""
    if not all(arg.is_python_constant() for arg in (*args, *kwargs.values())):
        return None
    return [arg.as_python_constant() for arg in args], {
        key: arg.as_python_constant() for key, arg in kwargs.items()
    }


def leave_to_python(what: str, why: str) -> NoReturn:
    """End the graph here: what is traced runs as it stands, then a new graph begins."""
    from torch._dynamo.exc import unimplemented

    unimplemented(gb_type="flroute leaves a call to Python", context=what, explanation=why, hints=[])


def guard_on_answer(output: Any, module: str, *names: str) -> None:
    """Have the code that is made of ``output`` run only while a function without arguments answers what it does now.

    Args:
        output: Dynamo's graph of one frame.
        module: the package that has the function.
        names: the attributes that lead there.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource

    with torch._guards.tracing(output.tracing_context):
        source: Any = ImportSource(module)
        for name in names:
            source = AttrSource(source, name)
        output.guards.add(CallFunctionNoArgsSource(source).make_guard(GuardBuilder.EQUALS_MATCH))


def function_of_node(kind: str, target: Any) -> Any:
    """The function that a node of a graph calls, as a function mode would hear of it; ``None`` for other nodes."""
    if kind == "call_method":
        return getattr(torch.Tensor, target, None)
    return target if kind == "call_function" else None


class _AsideLoader(Loader):
    """Loads a module inside a context, and calls somebody afterwards."""

    def __init__(self, loader: Any, context: AbstractContextManager[Any], then: Callable[[], None]) -> None:
        self._loader, self._context, self._then = loader, context, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        with self._context:
            self._loader.exec_module(module)
        self._then()


class _DynamoFinder(MetaPathFinder):
    def __init__(self, aside: Callable[[], AbstractContextManager[Any]], then: Callable[[], None]) -> None:
        self._aside, self._then = aside, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == DYNAMO else None
        if spec is not None:
            spec.loader = _AsideLoader(spec.loader, self._aside(), self._then)
        return spec


@contextmanager
def dynamo_imported_aside(
    aside: Callable[[], AbstractContextManager[Any]], then: Callable[[], None]
) -> Iterator[None]:
    """While this holds, Dynamo is imported inside ``aside()``, and ``then`` is called when it is there.

    At its import Dynamo makes tables of PyTorch's functions, which last as long as the process.
    """
    finder = _DynamoFinder(aside, then)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
