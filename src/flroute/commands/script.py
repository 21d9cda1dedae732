"""Running somebody's script as ``python`` does: its ``__main__``, its arguments, its traceback, its exit code."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from flroute.cuda_alias.advice import advise
from flroute.errors import FlrouteError

_OWN = (str(Path(__file__).resolve().parent.parent), "<frozen runpy>", runpy.__file__)


class ScriptError(FlrouteError):
    """There is no such script, or it is none."""


@dataclass(frozen=True)
class File:
    """A Python file, or a directory or archive with a ``__main__.py``."""

    path: str

    def check(self) -> None:
        """Say in words what is wrong with it, before anything is opened for it.

        Raises:
            ScriptError: it is not there, or is no Python.
        """
        path = Path(self.path)
        if path.is_dir():
            if not (path / "__main__.py").is_file():
                raise ScriptError(
                    f"{path} is a directory without a __main__.py: name the script in it, "
                    f"or a module with flroute run -m"
                )
        elif not path.is_file():
            raise ScriptError(f"{path} cannot be run: there is no such file")
        elif path.suffix == ".ipynb":
            raise ScriptError(
                f"{path} is a notebook: in it, %load_ext flroute and the cell magic %%flroute do this"
            )
        else:
            try:
                with path.open("rb") as file:
                    start = file.read(4096)
            except OSError as error:
                raise ScriptError(f"{path} cannot be read: {error.strerror}") from error
            if b"\0" in start and path.suffix != ".pyc" and not start.startswith(b"PK"):
                raise ScriptError(f"{path} is not a Python file: it holds binary data")

    @property
    def first_on_path(self) -> str:
        """What comes first in ``sys.path``."""
        path = Path(self.path)
        return str(path if path.is_dir() else path.resolve().parent)

    def execute(self) -> None:
        """Run it as ``__main__``."""
        runpy.run_path(self.path, run_name="__main__")


@dataclass(frozen=True)
class Module:
    """A module, as for ``python -m``."""

    name: str

    def check(self) -> None:
        """Say in words what is wrong with it, before anything is opened for it.

        Raises:
            ScriptError: it is not there.
        """
        sys.path.insert(0, self.first_on_path)
        try:
            found = importlib.util.find_spec(self.name)
        except (ImportError, ValueError) as error:  # of a package above it
            raise ScriptError(f"module {self.name} cannot be run: {error}") from error
        finally:
            sys.path.remove(self.first_on_path)
        if found is None:
            raise ScriptError(f"module {self.name} cannot be run: there is none of that name")

    @property
    def first_on_path(self) -> str:
        """What comes first in ``sys.path``."""
        return str(Path.cwd())

    def execute(self) -> None:
        """Run it as ``__main__``."""
        runpy.run_module(self.name, run_name="__main__", alter_sys=True)


def run(wanted: File | Module, arguments: Sequence[str]) -> int | str | None:
    """Run it to the end of its main program; gives the exit code, as ``sys.exit`` takes it.

    ``sys.argv``, ``sys.path`` and ``sys.excepthook`` stay the script's: its threads and what it left to ``atexit`` go on.
    """
    sys.argv = [wanted.path if isinstance(wanted, File) else wanted.name, *arguments]
    if not getattr(sys.flags, "safe_path", False):  # Python 3.11 and newer
        sys.path[:1] = [wanted.first_on_path]
    try:
        wanted.execute()
    except SystemExit as leaving:
        return leaving.code
    except BaseException as error:  # noqa: BLE001 -- whatever a script raises ends it, and is shown as Python shows it
        advise(error)
        without_own_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def without_own_frames(error: BaseException) -> None:
    """Take flroute's and runpy's frames out of the traceback of an error, and of those it came from."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _pruned(one.__traceback__)
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _pruned(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for one in reversed(frames):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
