"""``kernel[grid](...)`` without ``active()``: while a session is open, tensors on its devices decide where a kernel runs.

Triton need not be there, nor be imported before the session opens: it is met when it comes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from flroute.reference_vendor.triton_cpu.devices import ADDRESS
from flroute.reference_vendor.triton_cpu.errors import LaunchError, VersionError

_JIT = "triton.runtime.jit"
_LOCK = threading.Lock()
_open = 0
_tritons: Callable[..., Any] | None = None  # its own way to launch, while ours is in place of it


@contextmanager
def launches_on_devices() -> Iterator[None]:
    """Kernels given a tensor on a registered device run on this CPU, in every thread; others run as ever.

    Example:
        >>> import torch
        >>> from flroute.reference_vendor.triton_cpu.samples import negate
        >>> x = torch.ones(3, device="fl")
        >>> with launches_on_devices():
        ...     _ = negate[(1,)](x, 3, BLOCK=16)
        >>> x
        tensor([-1., -1., -1.], device='fl:0')
    """
    global _open
    with _LOCK:
        _open += 1
        if _open == 1:
            sys.meta_path.insert(0, _Finder)
            _install()
    try:
        yield
    finally:
        with _LOCK:
            _open -= 1
            if _open == 0:
                sys.meta_path.remove(_Finder)
                _uninstall()


def _install() -> None:
    global _tritons
    module = sys.modules.get(_JIT)
    if module is not None and _tritons is None:
        _tritons = module.KernelInterface.__getitem__
        module.KernelInterface.__getitem__ = _getitem(_tritons)


def _uninstall() -> None:
    global _tritons
    if _tritons is not None:
        sys.modules[_JIT].KernelInterface.__getitem__ = _tritons
        _tritons = None


def _getitem(tritons: Callable[..., Any]) -> Callable[..., Any]:
    """``kernel[grid]`` of functions, and of what autotune and heuristics make of them."""

    def getitem(kernel: Any, grid: Any) -> Callable[..., Any]:
        launch: Callable[..., Any] = tritons(kernel, grid)

        def launch_where_tensors_are(*args: Any, **kwargs: Any) -> Any:
            if any(_is_on_device(value) for value in (*args, *kwargs.values())):
                with _active(), _dtypes_in_words(kernel, args, kwargs):
                    return launch(*args, **kwargs)
            return launch(*args, **kwargs)

        return launch_where_tensors_are

    return getitem


@contextmanager
def _dtypes_in_words(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Of a dtype that it does not have, Triton says no more than its name, in a ``KeyError``."""
    try:
        yield
    except KeyError as error:
        for name, value in (*zip(kernel.arg_names, args, strict=False), *kwargs.items()):
            dtype = getattr(value, "dtype", None)
            if error.args == (str(dtype).rpartition(".")[2],):
                raise LaunchError(
                    f"kernel {_function(kernel).__name__}: the argument {name} is of {dtype}, which Triton does not have"
                ) from None
        raise


def _function(kernel: Any) -> Any:
    """The Python function beneath jit, autotune and heuristics."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _is_on_device(value: object) -> bool:
    kind = getattr(getattr(value, "device", None), "type", "cpu")
    return kind != "cpu" and kind in ADDRESS


def _active() -> Any:
    try:
        from flroute.reference_vendor.triton_cpu.scope import active
    except ModuleNotFoundError as error:
        raise VersionError(
            f"to run Triton's kernels on this CPU takes {error.name}: pip install 'flroute[triton]'"
        ) from error
    return active()


class _Finder:
    """Waits for Triton to be imported."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The usual module, that launches our way as soon as it is executed."""
        spec = PathFinder.find_spec(name, path, target) if name == _JIT else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                with _LOCK:
                    if _open:
                        _install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
