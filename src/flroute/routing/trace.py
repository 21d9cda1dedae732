"""Trace files: JSONL, appended to by one session after another, and read back.

Each line is one record: a ``header`` per session, each ``decision`` when it is first taken, and each decision's ``total``
when the session ends. A line is one write to a file opened for appending, so that processes do not cut into each other;
it names its session, as those of several may stand among each other.
"""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch

from flroute.errors import FlrouteError
from flroute.vocabulary import Decision, Phase, Reason, Rejection, Route

SCHEMA_VERSION = 1

_START = '{"kind": "'
"""Of every line; one that was cut off begins like this, too."""

_sessions = itertools.count(1)


class Trace:
    """What one session writes. The file is opened by the first record: a session that never runs leaves none.

    A file that cannot be written, on a full disk say, ends the trace with one warning, never the program; ``lost`` counts
    the records that it lacks.

    Args:
        path: of the file.
        max_bytes: a longer file is put aside as ``name.1``, over an older one, before the session begins in it.
    """

    def __init__(self, path: str, max_bytes: int) -> None:
        self._path, self._max_bytes = Path(path), max_bytes
        self._session = ""
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.lost = 0

    def decision(self, decision: Decision) -> None:
        """A decision, when it is first taken."""
        self._write("decision", asdict(decision))

    def close(self, totals: list[Decision]) -> None:
        """The totals, and the end; a later record opens the file again."""
        for decision in totals:
            self._write("total", asdict(decision))
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, kind: str, record: dict[str, Any]) -> None:
        with self._lock:
            if self.lost:
                self.lost += 1
                return
            try:
                if self._file is None:
                    self._file = self._open()
                _write(self._file, _line(kind, self._session, record))
            except OSError as error:
                self.lost = 1
                logging.getLogger("flroute").warning(
                    "the trace %s ends here, and the program goes on: %s", self._path, error
                )

    def _open(self) -> IO[bytes]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > self._max_bytes:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
        file = self._path.open("ab", buffering=0)
        if _is_cut_off(self._path):
            _write(file, b"\n")
        self._session = f"{os.getpid()}.{next(_sessions)}"
        header = {"schema_version": SCHEMA_VERSION, "torch": torch.__version__, "time": time.time()}
        _write(file, _line("header", self._session, header))
        return file


def _write(file: IO[bytes], line: bytes) -> None:
    """A whole line or none: an unbuffered file on a disk that fills up may take a part of it, and say so by a number."""
    written = file.write(line)
    if written != len(line):
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {written} of {len(line)} bytes were written"
        )


def _is_cut_off(path: Path) -> bool:
    """Whether the last line has no end: whoever wrote it was killed, or the disk was full."""
    with path.open("rb") as file:
        if not path.is_file() or file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def _line(kind: str, session: str, record: dict[str, Any]) -> bytes:
    return (json.dumps({"kind": kind, "session": session, **record}) + "\n").encode()


# Reading ------------------------------------------------------------------------------------------------------------


class TraceError(FlrouteError):
    """A file that holds no decisions flroute can read; says where and why."""


@dataclass(frozen=True)
class Recorded:
    """What a trace or a report file holds.

    Attributes:
        decisions: totals where a session ended, else the decisions as first taken.
        remark: what is missing, in words; empty if nothing is.
    """

    decisions: list[Decision]
    remark: str = ""


def read(path: Path) -> Recorded:
    """The decisions in a trace (``enable(trace=...)``) or a report (``session.report().to_json(...)``).

    Args:
        path: of the file. A trace cut off in the middle of a line is read up to there, and the remark says so.

    Raises:
        TraceError: it cannot be read, is something else, or has another schema version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    try:
        whole = json.loads(text)
    except json.JSONDecodeError:
        return _read_lines(path, text.splitlines())
    if isinstance(whole, dict) and whole.get("kind") == "header":  # a trace of one line
        return _read_lines(path, [text.strip()])
    if not isinstance(whole, dict) or "decisions" not in whole:
        raise TraceError(f"{path} is neither a trace nor a report of flroute")
    _check_version(path, 1, whole)
    return Recorded([_decision(path, 1, record) for record in whole["decisions"]])


def _read_lines(path: Path, lines: list[str]) -> Recorded:
    if not lines:
        raise TraceError(f"{path} is empty")
    sessions: dict[str, _Session] = {}
    remarks: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            is_record = line.startswith(_START) or (number == len(lines) and _START.startswith(line))
            if not sessions or not is_record:
                raise TraceError(f"{path}:{number}: not a line of a trace") from None
            remarks.append(f"{path}:{number}: cut off in the middle of a line, which is left out")
            continue
        _add(path, number, record, sessions)
    unfinished = sum(bool(session.first) and not session.totals for session in sessions.values())
    if unfinished:
        remarks.append(
            f"{path}: {unfinished} sessions without an end: decisions as first taken, without counts"
        )
    decisions = [d for session in sessions.values() for d in session.totals or session.first]
    return Recorded(decisions, "; ".join(remarks))


@dataclass
class _Session:
    first: list[Decision] = field(default_factory=list)
    totals: list[Decision] = field(default_factory=list)


def _add(path: Path, number: int, record: Any, sessions: dict[str, _Session]) -> None:
    kind, name = (record.get("kind"), str(record.get("session"))) if isinstance(record, dict) else (None, "")
    if kind == "header":
        _check_version(path, number, record)
        sessions[name] = _Session()
    elif kind not in ("decision", "total"):
        raise TraceError(f"{path}:{number}: not a record of a trace")
    elif name not in sessions:
        raise TraceError(f"{path}:{number}: the record of a session whose header is missing")
    else:
        session = sessions[name]
        (session.first if kind == "decision" else session.totals).append(_decision(path, number, record))


def _check_version(path: Path, line: int, record: dict[str, Any]) -> None:
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise TraceError(f"{path}:{line}: schema version {version}, this flroute reads {SCHEMA_VERSION}")


def _decision(path: Path, line: int, record: dict[str, Any]) -> Decision:
    try:
        known = {name: value for name, value in record.items() if name in Decision.__dataclass_fields__}
        known["route"], known["reason"] = Route(record["route"]), Reason(record["reason"])
        known["rejected"] = tuple(
            Rejection(r["kernel"], Reason(r["reason"]), r["detail"]) for r in record["rejected"]
        )
        known["dtypes"] = tuple(record["dtypes"])
        known["phase"] = Phase(record.get("phase", Phase.FORWARD))
        known["shapes"] = tuple(map(tuple, record["shapes"]))
        return Decision(**known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{path}:{line}: not a decision: {error!r}") from error
