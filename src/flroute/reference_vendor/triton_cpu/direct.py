"""Kernels straight from the cache on disk, for a vendor's own use: Triton is imported only to compile what is not there.

``load`` gives a ``launcher.Kernel``, which takes ndarrays and addresses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from flroute.reference_vendor.triton_cpu.errors import VersionError
from flroute.reference_vendor.triton_cpu.launcher import Kernel
from flroute.reference_vendor.triton_cpu.object_code import ObjectCode, triton_version, version
from flroute.vendor import disk_cache, entry_key

Constant = bool | int | float | str | None


def load(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, Constant] | None = None,
    *,
    sources: Sequence[str] = (),
) -> Kernel:
    """A ``@triton.jit`` function compiled for some types and constants.

    Args:
        kernel: where it is defined, ``"package.module:function"``, or the function itself. The module's text is part of the
            cache's key, and it is imported only to compile; for a function itself, Triton knows what it is made of.
        signature: the type of each parameter that is not a constant, in Triton's words: ``"*fp32"``, ``"i32"``, ``"fp64"``.
        constants: the values of the others, those declared ``tl.constexpr`` and any that is to be compiled in.
        sources: names of other modules whose functions or constants the kernel uses; Triton's own need not be named.

    Returns:
        The kernel. Keep it: loading it again takes a millisecond.

    Raises:
        ValueError: no such kernel; a parameter missing, unknown or of an unknown type; a source that is not named.
        VersionError: it is not in the cache, and Triton is not installed, or not a supported version of it.
        UnsupportedKernelError: it uses what this compiler does not lower.
        triton.CompilationError: Triton itself rejects it; the message shows the line.

    Example:
        >>> import numpy as np
        >>> negate = load("flroute.reference_vendor.triton_cpu.samples:negate", {"x": "*fp32", "n": "i32"}, {"BLOCK": 16})
        >>> x = np.arange(3, dtype=np.float32)
        >>> negate(1, x, 3)
        >>> x
        array([-0., -1., -2.], dtype=float32)
    """
    label, source = (kernel, _text_of(kernel, sources)) if isinstance(kernel, str) else _function(kernel)
    constants = constants or {}
    try:
        asked = json.dumps([label, sorted(signature.items()), sorted(constants.items())])
    except TypeError as error:
        raise ValueError(
            f"kernel {label}: a constant is neither number, bool, string nor None: {error}"
        ) from None
    digest = hashlib.sha256(f"{version()} {triton_version()} {source} {asked}".encode()).hexdigest()
    key = entry_key(label.rpartition(":")[2], digest)
    kept = disk_cache()
    data = kept.load(key)
    if data is None:
        data = _compile(kernel, label, signature, constants, sources).to_bytes()
        kept.store(key, data)
    return Kernel(ObjectCode.from_bytes(data))


def _function(kernel: Any) -> tuple[str, str]:
    """The name of a kernel that is given as such, and Triton's digest of all it is made of."""
    if not hasattr(kernel, "cache_key"):
        raise ValueError(f"{kernel!r} is no @triton.jit function")
    return f"{kernel.__module__}:{kernel.__name__}", f"{kernel.cache_key} {kernel.debug}"


def _text_of(kernel: str, sources: Sequence[str]) -> str:
    """A digest of the files that a kernel is made of."""
    return " ".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in _files_of(kernel, sources))


def _files_of(kernel: str, sources: Sequence[str]) -> list[Path]:
    module, _, name = kernel.partition(":")
    if not (module and name):
        raise ValueError(f"kernel {kernel!r}: write package.module:function")
    files = []
    for each in (module, *sources):
        try:
            spec = find_spec(each)
        except (ImportError, ValueError) as error:
            raise ValueError(f"kernel {kernel!r}: {error}") from error
        if spec is None or not spec.has_location or spec.origin is None:
            raise ValueError(f"kernel {kernel!r}: there is no source file of a module {each!r}")
        files.append(Path(spec.origin))
    return files


def _compile(
    kernel: Any,
    label: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Constant],
    sources: Sequence[str],
) -> ObjectCode:
    try:
        from flroute.reference_vendor.triton_cpu.compiler import compile_ttir
        from flroute.reference_vendor.triton_cpu.front_end import find, tensor_ir
    except ModuleNotFoundError as error:
        raise VersionError(
            f"kernel {label} is not in the cache, and to compile it takes Triton: pip install 'flroute[triton]'"
        ) from error
    if not isinstance(kernel, str):
        return compile_ttir(tensor_ir(kernel, signature, constants))
    return compile_ttir(tensor_ir(find(kernel), signature, constants, _files_of(kernel, sources)))
