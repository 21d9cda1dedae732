"""Calling a vendor kernel as the op's schema says: functional, in place, or with ``out=``.

The author of a kernel writes the math of the functional op; the adapters here supply the calling convention, check the
first result of each signature against PyTorch's own shape rules, and give results the strides PyTorch would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flroute.device.capsule import row_major
from flroute.device.dtypes import NUMPY_CARRIERS, NUMPY_DTYPES
from flroute.device.memory import DeviceArray
from flroute.device.out_of_memory import out_of_memory
from flroute.device.table import Device
from flroute.device.tensors import adopt_array, empty_strided, with_dtype, with_strides
from flroute.errors import KernelResultError, Unsupported
from flroute.kernels import Kernel
from flroute.routing.arrays import lower_argument, lower_for
from flroute.routing.expected import Expected, check_before_writing, expected_results, host_results
from flroute.routing.fallback import InKernel, calls_kernels
from flroute.routing.overlap import check_of
from flroute.routing.results import (
    all_contiguous,
    are_plain,
    as_computed,
    check_same_dtypes,
    is_laid_out,
    looks,
    resize_outputs,
)
from flroute.routing.schema import OpFacts, bind, tensors_in, written_tensors
from flroute.routing.transfers import Geometry
from flroute.routing.witness import watched
from flroute.torch_compat import schema_of

_ROW_MAJOR_OUT = {"aten::_fft_c2c.out", "aten::_fft_c2r.out", "aten::_fft_r2c.out", "aten::cholesky.out"}
"""Where the host resizes ``out`` without a look at the strides of the functional result."""

Invoke = Callable[[tuple[Any, ...], dict[str, Any]], Any]
StoreTensor = Callable[[torch.Tensor, torch.Tensor], None]

MAX_CHECKED = 256
"""Calls on the general path whose results are compared with PyTorch's shape rules, per signature of dtypes. Sequence lengths
may differ on every call, and asking PyTorch costs more than a small kernel; a debugging session checks every call."""


class Invocation:
    """One kernel bound to one op and device.

    Args:
        facts: of the op that is called; the kernel may compute its functional counterpart.
        kernel: the kernel.
        name: the kernel's full name, ``reference/numpy:add``.
        device: where it runs.
        store: copies one device tensor into another on the same device.
        account: accounts for host work the kernel asks for.
        debug: check every result, not only the first of each signature.
        watch: account for what the kernel has PyTorch compute on the host.
    """

    def __init__(
        self,
        facts: OpFacts,
        kernel: Kernel,
        name: str,
        device: Device,
        store: StoreTensor,
        account: InKernel,
        *,
        debug: bool,
        watch: bool = False,
    ) -> None:
        self.facts, self.kernel, self.name, self.device = facts, kernel, name, device
        self._store, self._debug, self.account = store, debug, account
        self._function = watched(kernel.function, account) if watch else kernel.function
        self._lower = lower_for(device)
        self.plain_results = False  # the last results were row-major where PyTorch wants them to be
        self._checked = 0
        self._always_plain = True  # so were all results of contiguous arguments
        self._trusted = False  # the last results were not checked: enough were
        returns = schema_of(facts.functional or facts.op).returns
        self._returns_numbers = bool(returns) and "Tensor" not in str(returns[0].type)
        self._returns_list = len(returns) == 1 and "List" in str(returns[0].type)
        self._check_overlap = check_of(facts)
        self._may_omit = any(a.name == "output_mask" for a in facts.arguments)
        self.writes_itself = bool(facts.written) and kernel.op == facts.name

    def adapter(self) -> Invoke:
        """The way to call the kernel for this op."""
        if self._returns_numbers:
            return self.call
        if self.writes_itself:
            return self._run_writing
        if self.facts.out_names:
            return self._run_out
        if self.facts.writes_self:
            return self._run_inplace
        return self._run_functional

    # -- the four calling conventions

    def _run_functional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        results, expected = self._results(self.facts.op, args, kwargs)
        for i, result in enumerate(results):  # an array returned twice is two tensors
            if any(result is earlier for earlier in results[:i]) and isinstance(result, np.ndarray):
                results[i] = result.copy()
        lifted = [None if r is None else self._lift(r, e) for r, e in zip(results, expected, strict=True)]
        self.plain_results = self._trusted or are_plain(expected, args, kwargs)
        if self._returns_list:
            return lifted
        return lifted[0] if len(lifted) == 1 else tuple(lifted)

    def _run_inplace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        self._check_overlap(target, args, kwargs)
        expected_results(
            self.facts.op, args, kwargs
        )  # raises what the host would, before anything is written
        results, expected = self._results(self.facts.functional, args, kwargs)
        made = self._adopt(results[0], expected[0])
        self._check_fits(made, target, args, kwargs)
        self._store(target, made)
        self.plain_results = True
        return target

    def _run_out(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = self.facts.out_names
        outs = [kwargs[name] for name in names]
        inputs = {name: value for name, value in kwargs.items() if name not in names}
        for out in outs:
            self._check_overlap(out, args, inputs)
        told = expected_results(self.facts.op, args, kwargs)
        if self.facts.out_says_dtype:
            inputs["dtype"] = outs[0].dtype
        functional = self.facts.functional
        foreseen = expected_results(functional, args, inputs)
        if self.facts.is_seeded and foreseen is not None:  # before anything is drawn
            check_same_dtypes(outs, foreseen)
        results, expected = self._results(functional, args, inputs)
        made = [self._adopt(result, want) for result, want in zip(results, expected, strict=True)]
        if foreseen is None:
            check_same_dtypes(outs, made)
        for out, result in zip(outs, made, strict=True):
            if not torch.can_cast(result.dtype, out.dtype):
                raise RuntimeError(
                    f"result type {result.dtype} of {self.facts.name} can't be cast to the out= tensor's {out.dtype}"
                )
        if told is None:
            told = expected
        resized: list[Geometry] = []
        for out, result, want, cast in zip(outs, made, expected, told, strict=True):
            if out.shape != result.shape:
                like = want if out.dtype == result.dtype else cast
                plain = self._trusted or self.facts.name in _ROW_MAJOR_OUT
                strides = row_major(result.shape) if plain else (result if like is None else like).stride()
                resized.append((out, result.shape, strides))
        if len(outs) > 1:  # nothing that may fail is left to do once the first is written
            made = [self._in_dtype(out.dtype, result) for out, result in zip(outs, made, strict=True)]
        resize_outputs(resized, self.facts.name)
        for out, result in zip(outs, made, strict=True):
            self._store(out, result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    def _run_writing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = written_tensors(self.facts, args, kwargs)
        if any(t.is_conj() or t.is_neg() for t in written):
            raise Unsupported("the tensor to write is a lazy conj or neg view")
        if self.facts.writes_self or self.facts.bumps_no_version:
            for target in written:
                self._check_overlap(target, args, kwargs)
        if self.facts.writes_self or self.facts.bumps_no_version:
            check_before_writing(self.facts.op, args, kwargs)
        answer = self.call(args, kwargs)
        self.plain_results = True
        returns = self.facts.schema.returns
        if not returns:
            return None
        if returns[0].alias_info is None:  # writes running statistics, say, and returns new tensors
            results = list(answer) if isinstance(answer, tuple | list) else [answer]
            expected = expected_results(self.facts.op, args, kwargs)
            expected = self._agreed(results, expected, self.facts.op, args, kwargs)
            made = [self._adopt(result, want) for result, want in zip(results, expected, strict=True)]
            return made[0] if len(made) == 1 else tuple(made)
        return written[0] if len(returns) == 1 else tuple(written)

    # -- parts

    @calls_kernels
    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the kernel with arrays in place of tensors; what it answers is the caller's to make sense of."""
        lower, explain = self._lower, self.explain
        arrays = [lower_argument(value, lower) for value in args]
        named = {name: lower_argument(value, lower) for name, value in kwargs.items()}
        try:
            return self._function(*arrays, **named)
        except Unsupported:
            raise
        except Exception as error:  # the kernel's own error reaches the caller, with a note
            explain(error, args, kwargs)
            raise

    def _results(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[torch.Tensor | None]]:
        """The kernel's results, checked, and what PyTorch expects of each."""
        expected = self._expected_of(op, args, kwargs)
        answer = self.call(args, kwargs)
        results = list(answer) if isinstance(answer, tuple | list) else [answer]
        count = len(schema_of(op).returns)
        if self._returns_list:
            count = len(expected) if expected is not None else len(results)
        if len(results) != count:
            raise KernelResultError(
                f"kernel {self.name} returned {len(results)} results, {op.name()} has {count}"
            )
        return results, self._agreed(results, expected, op, args, kwargs)

    def _agreed(
        self,
        results: list[Any],
        expected: Expected | None,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Expected:
        """What PyTorch expects, once the results are that.

        Raises:
            KernelResultError: one is not.
        """
        if expected is None:
            expected = as_computed(results, tensors_in(args, kwargs))
        if any(map(self._differs, results, expected)) and all(want is not None for want in expected):
            # Some of PyTorch's shape rules for data-free tensors are not what its host kernels do: these have the last word.
            expected = host_results(op, args, kwargs)
        for position, (result, want) in enumerate(zip(results, expected, strict=True)):
            if self._differs(result, want):
                self._refuse(result, want, position)
        return expected

    def _expected_of(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Expected | None:
        self._trusted = (
            self._checked >= MAX_CHECKED
            and self._always_plain
            and not self._debug
            and all_contiguous(args, kwargs)
            and all(
                t.dtype in NUMPY_DTYPES and t.numel() for t in tensors_in(args, kwargs)
            )  # empty ones have rules of their own
            and not any(
                isinstance(v, torch.memory_format) or v is torch.bfloat16 for v in (*args, *kwargs.values())
            )
        )
        if self._trusted:
            return None
        self._checked += 1
        expected = expected_results(op, args, kwargs)
        if all_contiguous(args, kwargs) and (expected is None or not are_plain(expected, args, kwargs)):
            self._always_plain = False
        return expected

    def _differs(self, result: Any, want: torch.Tensor | None) -> bool:
        if result is None:
            return not self._may_omit  # an output that was not asked for
        if not isinstance(result, np.ndarray | np.generic | DeviceArray):
            return True
        if want is None:
            return False
        wanted = want.dtype if isinstance(result, DeviceArray) else NUMPY_CARRIERS.get(want.dtype)
        return tuple(result.shape) != tuple(want.shape) or result.dtype != wanted

    def _refuse(self, result: Any, want: torch.Tensor | None, position: int) -> None:
        got = "nothing" if result is None else repr(result) if not hasattr(result, "dtype") else looks(result)
        raise KernelResultError(
            f"kernel {self.name} returned a wrong result {position} for {self.facts.name} on {self.device.name}: {got}; "
            f"PyTorch expects {'nothing' if want is None else looks(want)}. The result was not passed on."
        )

    def _check_fits(
        self, result: torch.Tensor, target: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if result.shape == target.shape and torch.can_cast(result.dtype, target.dtype):
            return
        host_results(self.facts.op, args, kwargs)  # the host refuses such a call, in its own words
        raise RuntimeError(
            f"{self.facts.name}: a result of {looks(result)} does not go into a target of {looks(target)}"
        )

    def _adopt(self, result: Any, want: torch.Tensor | None) -> torch.Tensor:
        """A tensor out of a result, in the dtype it stands for: bfloat16 travels through numpy as uint16."""
        made = adopt_array(self.device, result)
        if want is None and not self._trusted and is_laid_out(result):
            return with_strides(made, [step // result.itemsize for step in result.strides])
        return made if want is None or made.dtype == want.dtype else with_dtype(made, want.dtype)

    def _lift(self, result: Any, want: torch.Tensor | None) -> torch.Tensor:
        made = self._adopt(result, want)
        if want is None or made.stride() == want.stride():
            return made
        if all(
            a == b for size, a, b in zip(made.shape, made.stride(), want.stride(), strict=True) if size > 1
        ):
            return with_strides(made, want.stride())
        strided = empty_strided(self.device, want.shape, want.stride(), want.dtype)
        self._store(strided, made)
        return strided

    def _in_dtype(self, dtype: torch.dtype, made: torch.Tensor) -> torch.Tensor:
        if made.dtype == dtype:
            return made
        cast = empty_strided(self.device, made.shape, made.stride(), dtype)
        self._store(cast, made)
        return cast

    def explain(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note op, kernel and arguments on an error that is the kernel's own.

        Raises:
            torch.OutOfMemoryError: in its place, if numpy found no memory for a temporary or a result.
        """
        if isinstance(error, MemoryError) and (asked := _asked_for(error)):
            raise out_of_memory(self.device, asked, self.facts.name, error) from error
        shapes = ", ".join(
            f"{name}: {value.dtype} {list(value.shape)}"
            for name, value in bind(self.facts, args, kwargs).items()
            if isinstance(value, torch.Tensor)
        )
        note = f"raised by kernel {self.name} for {self.facts.name} on {self.device.name} with ({shapes})"
        if hasattr(error, "add_note"):
            error.add_note(note)


def _asked_for(error: MemoryError) -> int:
    """Bytes, which numpy's own error tells by shape and dtype; 0 for an error of the kernel's making."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    return 0 if shape is None or dtype is None else math.prod(shape) * np.dtype(dtype).itemsize
