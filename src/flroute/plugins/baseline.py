"""A baseline: the fallbacks that each test is known to have. It may shrink, and never grows unasked."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SCHEMA_VERSION = 1

_REMEDY = "make it anew with --flroute-update-baseline"


class BaselineError(Exception):
    """The file cannot be used; says why, and what to do."""


class Baseline:
    """A file of fallbacks by test.

    Args:
        path: of the JSON file.
        may_be_absent: a file that is not there counts as empty.

    Raises:
        BaselineError: it is absent, not readable, or of another schema version.
    """

    def __init__(self, path: Path, *, may_be_absent: bool) -> None:
        self.path = path
        self._tests = {} if may_be_absent and not path.exists() else _read(path)

    def of(self, test: str) -> Sequence[str]:
        """The fallbacks known of a test, such as ``aten::erfinv no_kernel``."""
        return self._tests.get(test, [])

    def write(self, tests: Mapping[str, Sequence[str]]) -> None:
        """Put what these tests fell back on in place of what was known of them; other tests keep what they have."""
        merged = {**self._tests, **tests}
        record = {
            "schema_version": SCHEMA_VERSION,
            "torch": torch.__version__,
            "fallbacks": {test: list(merged[test]) for test in sorted(merged) if merged[test]},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        fresh.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        fresh.replace(self.path)


def _read(path: Path) -> dict[str, list[str]]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BaselineError(f"there is no baseline {path}: {_REMEDY}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"the baseline {path} cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise BaselineError(
            f"{path}:{error.lineno}: the baseline is not valid JSON: {error.msg}; {_REMEDY}"
        ) from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION:
        raise BaselineError(
            f"the baseline {path} has schema version {version}, this flroute reads {SCHEMA_VERSION}: {_REMEDY}"
        )
    tests = record.get("fallbacks")
    if not isinstance(tests, dict) or not all(map(_is_list_of_words, tests.values())):
        raise BaselineError(f"the baseline {path} has no table of fallbacks by test: {_REMEDY}")
    return tests


def _is_list_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)
