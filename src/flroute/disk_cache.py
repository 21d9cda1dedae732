"""What is costly to make and cheap to keep, on disk: compiled kernels above all. Any number of processes share a folder.

An entry is one file that is written under another name and renamed, so that a process sees all of it or none; the digest
at its start tells one that a crash cut off. Nothing is locked and no file is kept open: a process may be killed, or
forked, at any point. This module does not import PyTorch.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flroute.settings import load_settings

_KEY = re.compile(r"\w[\w.-]{0,199}", re.ASCII)
_DIGEST = hashlib.sha256().digest_size
_ABANDONED = 3600  # seconds after which a file that is still being written has lost its writer


@dataclass(frozen=True)
class Entry:
    """One entry.

    Attributes:
        key: under which it was stored.
        bytes: its size on disk.
        used: when it was last stored or loaded, in seconds since 1970.
    """

    key: str
    bytes: int
    used: float

    @property
    def name(self) -> str:
        """What was compiled: the key up to its last hyphen."""
        return self.key.rpartition("-")[0] or self.key


class DiskCache:
    """Bytes by key, in a folder of files, at most ``limit`` bytes of them; what was not used for longest goes first.

    A folder that cannot be read or written, or a full disk, costs one warning and the entries, never the program.

    Args:
        folder: made when the first entry is stored.
        limit: in bytes; 0 keeps nothing.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = DiskCache(Path(folder), limit=1 << 20)
        ...     kept.store("softmax-1f0e", b"machine code")
        ...     kept.load("softmax-1f0e"), kept.load("softmax-other")
        (b'machine code', None)
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._warned = False

    def load(self, key: str) -> bytes | None:
        """What was stored under ``key``; ``None`` if there is nothing, or nothing whole.

        Args:
            key: letters, digits, ``_``, ``.`` and ``-``, at most 200 of them.

        Raises:
            ValueError: ``key`` is none.
        """
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        data = content[_DIGEST:]
        if hashlib.sha256(data).digest() != content[:_DIGEST]:
            _remove(path)
            return None
        with suppress(OSError):  # a folder that others fill, which this process may only read
            os.utime(path)
        return data

    def store(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``, in place of what was there.

        Args:
            key: as for ``load``.
            data: anything.

        Raises:
            ValueError: ``key`` is none.
        """
        path = self._path(key)
        if len(data) + _DIGEST > self.limit:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # what is in it will be run
            self._write(path, hashlib.sha256(data).digest() + data)
            self._evict()
        except FileNotFoundError:  # another process cleared the folder meanwhile
            pass
        except OSError as error:
            self._warn(error)

    def entries(self) -> list[Entry]:
        """Every entry, that not used for longest first."""
        found = [
            Entry(item.name, status.st_size, status.st_mtime)
            for item, status in self._files()
            if not item.name.startswith(".")
        ]
        return sorted(found, key=lambda entry: entry.used)

    def clear(self) -> None:
        """Remove every entry, and what killed processes left half written."""
        for item, _ in self._files():
            _remove(Path(item.path))

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(
                f"the key {key!r} cannot name a file: use letters, digits, '_', '.' and '-', at most 200 of them"
            )
        return self.folder / key

    def _write(self, path: Path, content: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix=".", dir=self.folder, delete=False) as file:
            written = Path(file.name)
            try:
                file.write(content)
                file.close()
                written.replace(path)
            except BaseException:  # whatever stopped us, an interrupt included, half a file is of no use
                _remove(written)
                raise

    def _evict(self) -> None:
        """Remove what goes beyond the limit, and files whose writer must have been killed."""
        for item, status in self._files():
            if item.name.startswith(".") and status.st_mtime < time.time() - _ABANDONED:
                _remove(Path(item.path))
        entries = self.entries()
        excess = sum(entry.bytes for entry in entries) - self.limit
        for entry in entries:
            if excess <= 0:
                return
            _remove(self.folder / entry.key)
            excess -= entry.bytes

    def _files(self) -> list[tuple[os.DirEntry[str], os.stat_result]]:
        """The folder's files, without those that another process removes as we look."""
        found = []
        try:
            with os.scandir(self.folder) as items:
                for item in items:
                    try:
                        if item.is_file(follow_symlinks=False):
                            found.append((item, item.stat(follow_symlinks=False)))
                    except FileNotFoundError:
                        continue
        except (FileNotFoundError, NotADirectoryError):
            return []
        return found

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            logging.getLogger("flroute").warning(
                "compiled kernels are not kept in %s, and the program goes on: %s. "
                "The setting cache_dir (FLROUTE_CACHE_DIR) names another folder",
                self.folder,
                error,
            )


def _remove(path: Path) -> None:
    with suppress(OSError):  # gone already, or not ours to remove: the limit is then kept by whoever can
        path.unlink()


def entry_key(name: str, digest: str) -> str:
    """A key for what ``name`` names and ``digest`` tells from others of that name.

    Args:
        name: any text; ``flroute cache`` groups entries by it.
        digest: hexadecimal digits or the like.

    Example:
        >>> entry_key("Kernels.softmax<4>", "1f0e")
        'Kernels_softmax_4_-1f0e'
    """
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', name)[:100] or '_'}-{digest}"


def disk_cache() -> DiskCache:
    """The cache that the settings ``cache_dir`` and ``cache_limit`` describe: one for every vendor's compiled kernels.

    A key says all that the bytes depend on: the kernel's source, the compiler's version, the processor.

    Raises:
        SettingsError: an unknown setting or value.

    Example:
        >>> disk_cache().load("a_kernel-of-no-vendor") is None
        True
    """
    settings = load_settings()
    return _cache_in(settings.cache_dir or _default_folder(), settings.cache_limit)


@cache
def _cache_in(folder: str, limit: int) -> DiskCache:
    return DiskCache(Path(folder), limit)


def _default_folder() -> str:
    """As the XDG base directory specification has it, which tells to ignore a relative path."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".cache"
        except RuntimeError:  # a user without a home: the warning will say that nothing can be kept there
            folder = Path(os.devnull)
    return str(folder / "flroute")
