"""Kernels straight from the cache on disk, for a vendor's own use: Triton is imported only to compile what is not there.

add = direct.load("my_vendor.kernels:add", {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 1024})
add(-(-n // 1024), x, y, out, n)   # ndarrays or addresses; see ``launcher.Kernel``
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from flroute.reference_vendor.triton_cpu.errors import VersionError
from flroute.reference_vendor.triton_cpu.launcher import Kernel
from flroute.reference_vendor.triton_cpu.object_code import ObjectCode, triton_version, version
from flroute.vendor import disk_cache, entry_key

Constant = bool | int | float | str | None


def load(
    kernel: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Constant] | None = None,
    *,
    sources: Sequence[str] = (),
) -> Kernel:
    """A ``@triton.jit`` function compiled for some types and constants.

    Args:
        kernel: where it is defined, ``"package.module:function"``. The module's text is part of the cache's key; the
            module itself is imported only to compile.
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
    constants = constants or {}
    module, _, name = kernel.partition(":")
    if not (module and name):
        raise ValueError(f"kernel {kernel!r}: write package.module:function")
    files = [_file_of(each, kernel) for each in (module, *sources)]
    key = _key(kernel, signature, constants, files)
    kept = disk_cache()
    data = kept.load(key)
    if data is None:
        data = _compile(module, name, signature, constants, files).to_bytes()
        kept.store(key, data)
    return Kernel(ObjectCode.from_bytes(data))


def _file_of(module: str, kernel: str) -> Path:
    try:
        spec = find_spec(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"kernel {kernel!r}: {error}") from error
    if spec is None or not spec.has_location or spec.origin is None:
        raise ValueError(f"kernel {kernel!r}: there is no source file of a module {module!r}")
    return Path(spec.origin)


def _key(
    kernel: str, signature: Mapping[str, str], constants: Mapping[str, Constant], files: Sequence[Path]
) -> str:
    try:
        asked = json.dumps([kernel, sorted(signature.items()), sorted(constants.items())])
    except TypeError as error:
        raise ValueError(
            f"kernel {kernel!r}: a constant is neither number, bool, string nor None: {error}"
        ) from None
    digest = hashlib.sha256(f"{version()} {triton_version()} {asked}".encode())
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return entry_key(kernel.partition(":")[2], digest.hexdigest())


def _compile(
    module: str,
    name: str,
    signature: Mapping[str, str],
    constants: Mapping[str, Constant],
    files: Collection[Path],
) -> ObjectCode:
    try:
        from flroute.reference_vendor.triton_cpu.compiler import compile_ttir
        from flroute.reference_vendor.triton_cpu.front_end import tensor_ir
    except ModuleNotFoundError as error:
        raise VersionError(
            f"kernel {module}:{name} is not in the cache, and to compile it takes Triton: pip install 'flroute[triton]'"
        ) from error
    return compile_ttir(tensor_ir(module, name, signature, constants, files))
