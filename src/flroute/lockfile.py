"""``flroute.lock``: the versions and op schemas that a project was tested with, and what differs from them here.

The schema of an op is its signature as PyTorch prints it. Its hash tells whether the op means the same to a kernel in another
PyTorch release, and a hash over all ops of a namespace tells it for all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import torch

from flroute import hookspecs, registry
from flroute.errors import LockError
from flroute.torch_compat import all_op_names, find_op, schema_of

FILE_NAME = "flroute.lock"
SCHEMA_VERSION = 1

_ANEW = "if this is the environment you want, `flroute lock` writes the file anew"
_NAMED = 5
"""Ops that a message names before it counts the rest."""


@dataclass(frozen=True)
class VendorVersions:
    """What a vendor says of itself; ``None`` where it says nothing."""

    version: str
    driver: str | None = None
    firmware: str | None = None


@dataclass(frozen=True)
class Lock:
    """One environment.

    Attributes:
        torch: PyTorch's version, its build included.
        flroute: flroute's version.
        plugins: by entry point, the package that brings it and its version, ``acme-torch 1.2``.
        vendors: by name.
        ops: by op, the hash of its schema. Those of ``aten``, and of every namespace that a vendor has kernels for.
    """

    torch: str
    flroute: str
    plugins: Mapping[str, str] = field(default_factory=dict)
    vendors: Mapping[str, VendorVersions] = field(default_factory=dict)
    ops: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespaces(self) -> dict[str, str]:
        """By namespace, one hash over the schemas of all its ops."""
        found: dict[str, list[str]] = {}
        for op, schema in sorted(self.ops.items()):
            found.setdefault(op.partition("::")[0], []).append(f"{op} {schema}")
        return {namespace: _hash("\n".join(ops), 16) for namespace, ops in found.items()}

    def ops_of(self, namespace: str) -> dict[str, str]:
        """The ops of one namespace, with their hashes."""
        return {op: schema for op, schema in self.ops.items() if op.startswith(f"{namespace}::")}

    def to_dict(self) -> dict[str, Any]:
        """As the file has it."""
        head = {"schema_version": SCHEMA_VERSION, "torch": self.torch, "flroute": self.flroute}
        vendors = {name: asdict(vendor) for name, vendor in self.vendors.items()}
        return {
            **head, "plugins": dict(self.plugins), "vendors": vendors, "namespaces": self.namespaces, "ops": dict(self.ops)
        }  # fmt: skip

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it, whole or not at all; returns the path.

        Raises:
            LockError: the file cannot be written.
        """
        target = Path(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            unfinished.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
            unfinished.replace(target)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise LockError(
                f"{target} cannot be written: {error}; give another place with `flroute lock --output FILE`"
            ) from error
        return target


@dataclass(frozen=True)
class Drift:
    """One thing that is not as it was locked.

    Attributes:
        what: ``torch``, ``driver of acme``, ``ops of aten``.
        locked: what the lock says; ``None`` if it knows no such thing.
        found: what there is; ``None`` if there is none.
        remedy: what brings back what was locked.
        changed: ops whose schema is another; for ``ops of ...`` only, as are the next two.
        new: ops that the lock does not know.
        gone: ops that are no more.
    """

    what: str
    locked: str | None
    found: str | None
    remedy: str
    changed: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        """In one line, without the remedy."""
        kinds = (("changed", self.changed), ("new", self.new), ("gone", self.gone))
        ops = "; ".join(f"{len(names)} {kind}: {_some(names)}" for kind, names in kinds if names)
        text = f"{self.what}: locked {self.locked or 'nothing'}, here {self.found or 'nothing'}"
        return f"{text} ({ops})" if ops else text


def here() -> Lock:
    """This environment; loads the vendors.

    Example:
        >>> from flroute import lockfile
        >>> found = lockfile.here()
        >>> list(found.namespaces), lockfile.compare(found, found)
        (['aten'], [])
    """
    loaded = registry.load()
    namespaces = {"aten", *(op.partition("::")[0] for kernels in loaded.kernels.values() for op in kernels)}
    vendors = {
        vendor.name: VendorVersions(vendor.version, vendor.driver_version, vendor.firmware_version)
        for vendor in loaded.vendors.values()
    }
    ops = {op: schema for namespace in sorted(namespaces) for op, schema in _schemas(namespace).items()}
    return Lock(torch.__version__, version("flroute"), _plugins(), vendors, ops)


def read(path: str | os.PathLike[str]) -> Lock:
    """The lock in a file.

    Raises:
        LockError: there is none, or it is not one that this flroute reads; says what to do.
    """
    target = Path(path)
    try:
        text = target.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LockError(f"{target} does not exist; `flroute lock` writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"{target} cannot be read: {error}") from error
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise LockError(f"{target}:{error.lineno}: not a lock file: {error.msg}; {_ANEW}") from error
    schema_version = found.get("schema_version") if isinstance(found, dict) else None
    if schema_version != SCHEMA_VERSION:
        raise LockError(
            f"{target}: schema version {schema_version!r}, this flroute reads {SCHEMA_VERSION}; "
            f"read it with the flroute that wrote it, or write it anew with `flroute lock`"
        )
    try:
        vendors = {name: VendorVersions(**versions) for name, versions in found["vendors"].items()}
        lock = Lock(found["torch"], found["flroute"], dict(found["plugins"]), vendors, dict(found["ops"]))
        whole = lock.namespaces == found["namespaces"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LockError(f"{target}: not a lock file: {type(error).__name__}: {error}; {_ANEW}") from error
    if not whole:
        raise LockError(
            f"{target}: its ops do not fit their namespaces' hashes: it was changed by hand; {_ANEW}"
        )
    return lock


def compare(locked: Lock, found: Lock) -> list[Drift]:
    """What differs: versions first, then the ops of each namespace.

    Example:
        >>> then = Lock("2.13.0", "0.1.0", ops={"aten::relu": "11", "aten::gone": "22"})
        >>> now = Lock("2.15.0", "0.1.0", ops={"aten::relu": "33", "aten::mish": "44"})
        >>> versions, ops = compare(then, now)
        >>> str(versions), versions.remedy
        ('torch: locked 2.13.0, here 2.15.0', "pip install 'torch==2.13.0'")
        >>> ops.changed, ops.new, ops.gone
        (('aten::relu',), ('aten::mish',), ('aten::gone',))
    """
    return [*_version_drifts(locked, found), *_op_drifts(locked, found)]


def verify() -> None:
    """Make sure that this environment is the one in the nearest ``flroute.lock`` upward.

    Raises:
        LockError: it is not, naming each thing that drifted and how to bring it back; or there is no such file.
    """
    path = nearest()
    drifts = compare(_read_once(path, path.stat().st_mtime_ns), here())
    if drifts:
        lines = "".join(f"\n  {drift}. To do: {drift.remedy}" for drift in drifts)
        raise LockError(f"this environment is not the one in {path}:{lines}\nOr, {_ANEW}.")


def nearest() -> Path:
    """The ``flroute.lock`` of the working directory or the next one above it.

    Raises:
        LockError: there is none.
    """
    start = Path.cwd()
    for directory in (start, *start.parents):
        if (directory / FILE_NAME).is_file():
            return directory / FILE_NAME
    raise LockError(
        f"there is no {FILE_NAME} in {start} or above it; `flroute lock` writes one for this environment"
    )


@lru_cache(maxsize=8)
def _read_once(path: Path, _mtime: int) -> Lock:
    return read(path)


@cache
def _plugins() -> dict[str, str]:
    """By entry point, the package it comes from."""
    found = sorted(entry_points(group=hookspecs.PROJECT), key=lambda entry: entry.name)
    return {
        entry.name: f"{entry.dist.name} {entry.dist.version}" for entry in found if entry.dist is not None
    }


@cache
def _schemas(namespace: str) -> dict[str, str]:
    """By op of a namespace, the hash of its schema; a quarter of a second for ``aten``, once a process."""
    ops = ((name, find_op(name)) for name in sorted(all_op_names()) if name.startswith(f"{namespace}::"))
    return {name: _hash(str(schema_of(op)), 8) for name, op in ops if op is not None}


def _hash(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def _version_drifts(locked: Lock, found: Lock) -> Iterator[Drift]:
    if locked.torch != found.torch:
        public = locked.torch.partition("+")[0]  # where a build comes from, pip cannot be told in general
        yield Drift("torch", locked.torch, found.torch, f"pip install 'torch=={public}'")
    if locked.flroute != found.flroute:
        yield Drift("flroute", locked.flroute, found.flroute, f"pip install 'flroute=={locked.flroute}'")
    for name in sorted(locked.plugins.keys() | found.plugins.keys()):
        then, now = locked.plugins.get(name), found.plugins.get(name)
        if then != now:
            yield Drift(f"plugin {name}", then, now, _pip(then, now))
    for name in sorted(locked.vendors.keys() | found.vendors.keys()):
        yield from _vendor_drifts(name, locked.vendors.get(name), found.vendors.get(name))


def _pip(then: str | None, now: str | None) -> str:
    """What makes a package, ``name version``, the locked one."""
    if then is None:
        return f"pip uninstall {str(now).partition(' ')[0]}"
    return f"pip install '{then.replace(' ', '==')}'"


def _vendor_drifts(name: str, locked: VendorVersions | None, found: VendorVersions | None) -> Iterator[Drift]:
    if locked is None or found is None:
        then, now = locked.version if locked else None, found.version if found else None
        remedy = "remove the package that brings it" if found else "`flroute doctor` says why it did not load"
        yield Drift(f"vendor {name}", then, now, remedy)
        return
    for what, then, now in (
        (f"vendor {name}", locked.version, found.version),
        (f"driver of {name}", locked.driver, found.driver),
        (f"firmware of {name}", locked.firmware, found.firmware),
    ):
        if then != now:
            yield Drift(
                what,
                then,
                now,
                f"install {what} {then}" if then else f"the locked {name} told no such version",
            )


def _op_drifts(locked: Lock, found: Lock) -> Iterator[Drift]:
    then, now = locked.namespaces, found.namespaces
    for namespace in sorted(then.keys() | now.keys()):
        if then.get(namespace) == now.get(namespace):
            continue
        before, after = locked.ops_of(namespace), found.ops_of(namespace)
        yield Drift(
            f"ops of {namespace}", then.get(namespace), now.get(namespace),
            "they come with PyTorch, or with the package that defines them: install the locked release",
            changed=tuple(sorted(op for op in before.keys() & after.keys() if before[op] != after[op])),
            new=tuple(sorted(after.keys() - before.keys())),
            gone=tuple(sorted(before.keys() - after.keys())),
        )  # fmt: skip


def _some(names: tuple[str, ...]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")
