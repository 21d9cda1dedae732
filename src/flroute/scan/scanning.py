"""A scan of many files, on all cores where there are many."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from flroute.scan.files import find_files, scan_file
from flroute.scan.findings import FileScan, Scan

_ENOUGH_FOR_PROCESSES = 200
_AT_ONCE = 25


def scan_paths(
    paths: Sequence[Path],
    *,
    lacking: frozenset[str] = frozenset(),
    follow: Callable[[list[Path], Iterator[FileScan]], Iterator[FileScan]] | None = None,
) -> Scan:
    r"""Find what is device-bound in files and folders.

    Args:
        paths: files, and folders with Python files and notebooks.
        lacking: ops for which a vendor has no kernel: `ops_without_kernels`.
        follow: takes all files and the scans as they come, and hands the scans on; a progress bar.

    Raises:
        ScanError: a path does not exist.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "train.py").write_text("import torch\nmodel = torch.nn.Linear(2, 2).cuda()\n")
        >>> found = scan_paths([folder])
        >>> found.verdict.value, found.exit_code
        ('runs as is under flroute run', 1)
    """
    files = find_files(paths)
    scans = _scan_all(files, lacking)
    if follow is not None:
        scans = follow(files, scans)
    return Scan(tuple(scan for scan in scans if scan.findings), len(files))


def _scan_all(files: list[Path], lacking: frozenset[str]) -> Iterator[FileScan]:
    work = partial(scan_file, lacking=lacking)
    cores = len(os.sched_getaffinity(0))
    if len(files) < _ENOUGH_FOR_PROCESSES or cores < 2:
        yield from map(work, files)
        return
    # Forked, since a process started anew would import PyTorch first, which takes longer than it saves.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(work, files, chunksize=_AT_ONCE)
