"""TOML files, with the line on which each key stands."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from flroute.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Keys = tuple["str | int", ...]
"""The way to a value: keys of tables, positions in lists."""


def read_toml(path: Path, text: str) -> dict[str, Any]:
    """What a file says.

    Raises:
        SettingsError: it is not TOML; names the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        line = at.group(1) if at else str(text.count("\n") + 1)  # "at end of document" names no line
        raise SettingsError(f"{path}:{line}: not valid TOML: {error}") from error


def dig(data: Any, keys: Keys) -> Any:
    """The value at the end of the way; ``None`` if the way ends before."""
    for key in keys:
        if isinstance(key, int):
            data = data[key] if isinstance(data, list) and key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data


def line_of(text: str, keys: Keys) -> int:
    """The line on which a key is set, however it is spelled: the first statement after which it exists."""
    lines = text.splitlines()
    start = 1  # of the statement under way
    for number in range(1, len(lines) + 1):
        try:
            found = dig(tomllib.loads("\n".join(lines[:number])), keys)
        except tomllib.TOMLDecodeError:  # inside a statement of several lines
            continue
        if found is not None:
            return start
        start = number + 1
    return start
