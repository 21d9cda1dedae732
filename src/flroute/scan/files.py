"""Files of a code base: which are looked at, how they are read, and how a rewritten one is put in the place of the old."""

from __future__ import annotations

import codecs
import io
import json
import os
import shutil
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flroute.errors import ScanError
from flroute.scan.findings import FileScan, Finding, Kind, Need
from flroute.scan.rewriter import scan_source
from flroute.scan.skim import may_have_findings

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
"""Folders nobody edits code in; so are those whose name begins with a dot, and virtual environments."""


@dataclass(frozen=True)
class SourceFile:
    """A file's text as it is on disk: the ends of its lines included."""

    text: str
    encoding: str
    mark: bytes

    def encoded(self, text: str) -> bytes:
        """A text in this file's encoding, with its byte order mark if it has one."""
        return self.mark + text.encode(self.encoding)


def find_files(paths: Sequence[Path]) -> list[Path]:
    """Python files and notebooks in these folders, and these files whatever they are called.

    Links in a folder are not followed: what they lead to is scanned where it is, and a rewrite stays in the folder.

    Raises:
        ScanError: a path does not exist, or is a link that leads nowhere.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            found.update(dict.fromkeys(_walk(path)))
        elif path.is_file():
            found[path] = None
        else:
            broken = path.is_symlink()
            raise ScanError(
                f"{path} {'is a link that leads nowhere' if broken else 'does not exist'}: name a file or a folder"
            )
    return list(found)


def scan_file(path: Path, lacking: frozenset[str] = frozenset()) -> FileScan:
    """What is found in one file; what cannot be read is a finding, too."""
    name = str(path)
    try:
        content = path.read_bytes()
        if not lacking and not may_have_findings(content):
            _source_of(content)
            return FileScan(name, ())
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # of a string's escapes, which Python says when it compiles the file
            if path.suffix == ".ipynb":
                return _scan_notebook(content, name, lacking)
            return scan_source(_source_of(content).text, name, lacking=lacking)
    except SyntaxError as error:
        return _unreadable(name, error.lineno or 1, f"Python cannot parse it: {error.msg}")
    except UnicodeDecodeError as error:
        return _unreadable(
            name, content.count(b"\n", 0, error.start) + 1, f"it is no text in {error.encoding}"
        )
    except RecursionError:
        return _unreadable(name, 1, "it is nested too deeply")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return _unreadable(name, 1, f"it cannot be read: {reason}")


def write(scan: FileScan, fixed: str) -> None:
    """Put the rewritten text in the place of the old, all of it or nothing.

    Raises:
        ScanError: the folder cannot be written to.
    """
    path = Path(scan.path).resolve()
    beside = path.with_name(f".{path.name}.flroute")
    try:
        beside.write_bytes(_source_of(path.read_bytes()).encoded(fixed))
        shutil.copymode(path, beside)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ScanError(f"{scan.path} cannot be rewritten: {error.strerror}; it is as it was") from error


def text_of(path: str) -> str:
    """A file's text, as `scan_file` has read it."""
    return _source_of(Path(path).read_bytes()).text


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(files):
            path = Path(here, name)
            if path.suffix in (".py", ".ipynb") and not path.is_symlink():
                yield path


def _source_of(content: bytes) -> SourceFile:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
    encoding = "utf-8" if mark else encoding
    return SourceFile(content[len(mark) :].decode(encoding), encoding, mark)


def _scan_notebook(content: bytes, name: str, lacking: frozenset[str]) -> FileScan:
    """All cells as one program; what `--fix` could do in a file has to be done by hand here."""
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, source in _cells(json.loads(content)):
        for line, text in enumerate(source.split("\n"), 1):
            lines.append(_without_magic(text))
            places.append((number, line))
    found = scan_source("\n".join(lines) + "\n", name, lacking=lacking)
    return FileScan(name, tuple(_in_cell(finding, *places[finding.line - 1]) for finding in found.findings))


def _cells(notebook: dict[str, list[dict[str, str | list[str]]]]) -> Iterable[tuple[int, str]]:
    for number, cell in enumerate(notebook.get("cells", []), 1):
        source = "".join(cell.get("source", ""))
        if cell.get("cell_type") == "code" and not source.lstrip().startswith("%%"):
            yield number, source


def _without_magic(line: str) -> str:
    """IPython's own syntax is no Python: ``%matplotlib inline``, ``!pip install``, ``x?``."""
    code = line.lstrip()
    return (
        line[: len(line) - len(code)] + "pass"
        if code.startswith(("%", "!", "?")) or code.endswith("?")
        else line
    )


def _in_cell(finding: Finding, cell: int, line: int) -> Finding:
    need = Need.HAND if finding.need is Need.FIX else finding.need
    return replace(finding, cell=cell, line=line, need=need)


def _unreadable(path: str, line: int, why: str) -> FileScan:
    return FileScan(
        path,
        (Finding(path, line, 1, Kind.UNREADABLE, Need.HAND, runs=False, source=Path(path).name, advice=why),),
    )
