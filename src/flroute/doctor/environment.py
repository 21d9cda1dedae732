"""What the doctor sees around flroute: versions, the machine, and the variables and settings in force."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement

from flroute.doctor.checks import Check, State

_OPTIONAL = {
    "triton": "flroute[triton]",
    "llvmlite": "flroute[triton]",
}
"""Packages that flroute does without, and the extra that brings them."""

_VARIABLES = (
    "TORCH_DEVICE_BACKEND_AUTOLOAD", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OPENBLAS_CORETYPE",
)  # fmt: skip
"""Variables of others that change what flroute does or how fast; shown where they are set."""

_CPU_FEATURES = (
    "sse4_2", "f16c", "fma", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd", "bf16", "sve",
)  # fmt: skip
"""Of what Linux lists, those that kernels are written for."""


def requirements() -> Iterator[Check]:
    """Each package that flroute requires, whether there is one that will do."""
    wanted = map(Requirement, requires("flroute") or ())
    for requirement in wanted:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            yield Check(requirement.name, State.RED, "not installed, and flroute needs it", remedy)
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            yield Check(
                requirement.name, State.RED, f"{found}; flroute needs {requirement.specifier}", remedy
            )


def versions() -> Iterator[Check]:
    """What is installed."""
    import torch

    from flroute.torch_compat import SUPPORTED, TORCH_VERSION

    yield Check("flroute", State.GREEN, version("flroute"))
    yield Check("python", State.GREEN, f"{platform.python_version()} ({sys.executable})")
    if f"{TORCH_VERSION.major}.{TORCH_VERSION.minor}" in SUPPORTED:
        yield Check("torch", State.GREEN, torch.__version__)
    else:
        tested = ", ".join(SUPPORTED)
        yield Check(
            "torch", State.YELLOW, f"{torch.__version__}; flroute is tested with {tested}",
            f"if something misbehaves, pip install 'torch=={SUPPORTED[-1]}.*'",
        )  # fmt: skip
    yield Check("numpy", State.GREEN, version("numpy"))
    for package, extra in _OPTIONAL.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = f"not installed; pip install '{extra}' brings it"
        yield Check(package, State.GREEN, found)


def host() -> Iterator[Check]:
    """The machine: system, C library, processor, threads."""
    import torch

    yield Check("system", State.GREEN, f"{platform.system()} {platform.release()} on {platform.machine()}")
    library, number = platform.libc_ver()
    yield Check("C library", State.GREEN, f"{library} {number}".strip() or "not glibc")
    level = torch.backends.cpu.get_cpu_capability()
    found = f"{_cpu_model()}; {', '.join(_cpu_features()) or 'features unknown'}; PyTorch's kernels: {level}"
    if "ATEN_CPU_CAPABILITY" in os.environ:
        yield Check(
            "CPU", State.YELLOW, f"{found}, as ATEN_CPU_CAPABILITY says", "unset ATEN_CPU_CAPABILITY to let PyTorch choose"
        )  # fmt: skip
    else:
        yield Check("CPU", State.GREEN, found)
    threads, cores = torch.get_num_threads(), _usable_cores()
    if threads > cores:
        yield Check(
            "threads", State.YELLOW, f"PyTorch uses {threads} on {cores} usable cores: they wait for each other",
            f"set OMP_NUM_THREADS={cores}",
        )  # fmt: skip
    else:
        yield Check("threads", State.GREEN, f"PyTorch uses {threads} on {cores} usable cores")


def settings() -> Iterator[Check]:
    """Variables that matter, unknown ones of ours by name, and each setting with where it comes from."""
    from flroute.settings import explain_settings, unknown_variables

    for variable in _VARIABLES:
        if variable in os.environ:
            yield Check(variable, State.GREEN, os.environ[variable] or "empty")
    unknown = unknown_variables()
    for variable, suggestion in unknown.items():
        remedy = f"unset {variable}" + (f", or write {suggestion}" if suggestion else "")
        yield Check(variable, State.RED, "flroute knows no such variable, and refuses to run with it", remedy)
    if unknown:
        return  # nothing else can be read before they are gone
    explained = explain_settings()
    if not explained:
        yield Check("settings", State.GREEN, "all at their defaults")
    for name, origin in explained.items():
        yield Check(f"setting {name}", State.GREEN, f"{origin.value} (from {origin.where})")


def _usable_cores() -> int:
    """Cores that this process may run on; a container often has fewer than the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_info() -> dict[str, str]:
    """The first processor's entry in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    rows = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in rows}


def _cpu_model() -> str:
    return _cpu_info().get("model name") or platform.processor() or platform.machine()


def _cpu_features() -> list[str]:
    info = _cpu_info()
    listed = set(info.get("flags", info.get("Features", "")).split())  # x86 and Arm have a word each
    return [feature for feature in _CPU_FEATURES if feature in listed]
