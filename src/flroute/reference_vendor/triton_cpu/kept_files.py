"""Where Triton's compiler puts its files inside ``active()``: all of a kernel's in one entry of the cache on disk."""

from __future__ import annotations

import atexit
import io
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from triton.runtime.cache import CacheManager

from flroute.vendor import disk_cache, entry_key


class KeptFiles(CacheManager):  # type: ignore[misc]
    """The files of one kernel. Triton reads them by path: they lie in a folder of this process while it runs."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key
        self._folder = _folder_of(os.getpid()) / key
        self._folder.mkdir(exist_ok=True)

    def get_file(self, filename: str) -> str | None:
        """The path of a file that was put there in this process, or belongs to a group that was fetched."""
        path = self._folder / filename
        return str(path) if path.exists() else None

    def put(self, data: object, filename: str, binary: bool = True) -> str:
        """Write a file; its path."""
        path = self._folder / filename
        path.write_bytes(data if isinstance(data, bytes) else str(data).encode())
        return str(path)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Fetch a kernel's files, of which ``filename`` names one; their paths by name."""
        kept = disk_cache().load(self._entry(filename))
        if kept is None:
            return None
        with ZipFile(io.BytesIO(kept)) as files:
            return {name: self.put(files.read(name), name) for name in files.namelist()}

    def put_group(self, filename: str, group: dict[str, str]) -> None:
        """Keep a kernel's files."""
        packed = io.BytesIO()
        with ZipFile(packed, "w", ZIP_DEFLATED) as files:
            for name, path in group.items():
                files.write(path, name)
        disk_cache().store(self._entry(filename), packed.getvalue())

    def _entry(self, filename: str) -> str:
        return entry_key(Path(filename).stem, self._key)


@cache
def _folder_of(process: int) -> Path:
    """A forked child has a folder of its own, and leaves its parent's alone when it exits."""
    folder = tempfile.mkdtemp(prefix="triton-cpu-")

    def remove() -> None:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)
