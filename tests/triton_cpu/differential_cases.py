"""All kernels that are run twice. As a script: what Triton's interpreter makes of them, or which ops they consist of.

``TRITON_INTERPRET=1 python differential_cases.py results FILE``, or ``python differential_cases.py ops FILE``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import differential_kernels
import differential_language
import torch


def cases() -> dict[str, Callable[[], torch.Tensor]]:
    """Every case by a name: a call that gives what it computes."""
    found: dict[str, Callable[[], torch.Tensor]] = {}
    for function, arguments in (*differential_kernels.cases(), *differential_language.cases()):
        parts = (function.__name__[1:], *arguments)
        name = "-".join(str(part).removeprefix("torch.") for part in parts)
        found[name] = lambda function=function, arguments=arguments: function(*arguments)
    return found


def results() -> dict[str, torch.Tensor | str]:
    """What every case gives; the error's first line where it fails."""
    found: dict[str, torch.Tensor | str] = {}
    for name, case in cases().items():
        try:
            found[name] = case()
        except Exception as error:  # a case that fails must not hide the others
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def ops() -> dict[str, list[str]]:
    """The names of the ops that are lowered, each with the cases it occurs in; nothing is compiled.

    Every kernel is refused here, and Triton keeps the refusal: for a process and a cache of their own.
    """
    from flroute.reference_vendor import triton_cpu
    from flroute.reference_vendor.triton_cpu import compiler, plan, ttir

    found: dict[str, list[str]] = {}
    running = ""

    def note(text: str) -> None:
        for _, op in plan.walk(ttir.read(text).blocks):
            found.setdefault(op.name, []).append(running)
        raise triton_cpu.UnsupportedKernelError("kernel", "only its ops are wanted", "")

    compiler.compile_ttir = note
    with triton_cpu.active():
        for running, case in cases().items():  # noqa: B007 -- ``note`` reads it
            try:
                case()
            except triton_cpu.UnsupportedKernelError:
                continue
    return found


if __name__ == "__main__":
    if sys.argv[1] == "ops":
        Path(sys.argv[2]).write_text(json.dumps(ops()))
    else:
        torch.save(results(), sys.argv[2])
