"""What a setting may be: values from arguments and files, and the texts of environment variables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import TypeVar

from flroute import alloc_conf as pools
from flroute.policy import RULE, Rule, read_rule

E = TypeVar("E", bound=Enum)


class RejectedError(ValueError):
    """A value a setting does not take; carries the allowed words, for a suggestion, and the word at fault in a longer value."""

    def __init__(self, allowed: str, words: Iterable[str] = (), *, why: str = "", culprit: str = "") -> None:
        super().__init__(allowed)
        self.allowed, self.words, self.why, self.culprit = allowed, tuple(words), why, culprit


def word(value: object) -> str:
    """A non-empty string."""
    if not isinstance(value, str) or not value:
        raise RejectedError("a non-empty string")
    return value


def path(value: object) -> str:
    """A path, as a string."""
    return word(os.fspath(value) if isinstance(value, os.PathLike) else value)


def number_of_bytes(value: object) -> int:
    """A number of bytes."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RejectedError("a number of bytes, 0 or more")
    return value


def flag(value: object) -> bool:
    """A truth value."""
    if not isinstance(value, bool):
        raise RejectedError("true or false")
    return value


def one_of(words: type[E]) -> Callable[[object], E]:
    """A reader of one of the words of an enum."""

    def convert(value: object) -> E:
        try:
            return words(value)
        except ValueError:
            allowed = [str(word.value) for word in words]
            raise RejectedError(", ".join(allowed), allowed) from None

    return convert


def order(value: object) -> dict[str, tuple[str, ...]]:
    """For each op its candidates."""
    allowed = 'for each op a list of candidates, such as {"aten::mm": ["triton", "numpy", "host"]}'
    if not isinstance(value, Mapping):
        raise RejectedError(allowed)
    for op, candidates in value.items():
        if not (isinstance(op, str) and "::" in op and _is_list_of_words(candidates)):
            raise RejectedError(allowed)
    return {op: tuple(candidates) for op, candidates in value.items()}


def rules(value: object) -> tuple[Rule, ...]:
    """A list of rules."""
    if not isinstance(value, list | tuple):
        raise RejectedError(f"a list of {RULE}")
    return tuple([read_rule(item) for item in value])


def alloc_conf(value: object) -> dict[str, int | float]:
    """Settings of pools."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise RejectedError(pools.ALLOWED)
    try:
        return pools.read(value)
    except pools.WrongAllocConfError as error:
        raise RejectedError(pools.ALLOWED, pools.KEYS, why=str(error), culprit=error.key) from None


def words(value: object) -> tuple[str, ...]:
    """A list of words; one may stand alone."""
    words = (value,) if isinstance(value, str) else value
    if not _is_list_of_words(words):
        raise RejectedError('names of vendors, implementations or kernels, or globs, such as ["reference/*"]')
    return tuple(words)  # type: ignore[arg-type]


def alias(value: object) -> tuple[str, ...]:
    """Names that mean the device, too."""
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or any(name != "cuda" for name in names):
        raise RejectedError('["cuda"]: no other device has a stand-in', ["cuda"])
    return ("cuda",)


def _is_list_of_words(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(w, str) and w for w in value)


_FLAGS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def flag_from_text(text: str) -> bool:
    """A truth value, as an environment variable spells it."""
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise RejectedError(", ".join(_FLAGS), _FLAGS) from None


def bytes_from_text(text: str) -> object:
    """A number, where the text is one."""
    return int(text) if text.isdecimal() else text


def order_from_text(text: str) -> dict[str, list[str]]:
    """``aten::mm=triton,host; aten::add=host``."""
    rows = [row.partition("=") for row in text.split(";") if row.strip()]
    if not all(separator for _, separator, _ in rows):
        raise RejectedError("aten::mm=triton,numpy,host with ; between ops")
    return {op.strip(): [word.strip() for word in words.split(",")] for op, _, words in rows}


def alloc_conf_from_text(text: str) -> dict[str, str]:
    """``max_split_size_mb:128,garbage_collection_threshold:0.8``."""
    try:
        return pools.split(text)
    except pools.WrongAllocConfError as error:
        raise RejectedError(pools.ALLOWED, why=str(error)) from None


def rules_from_text(text: str) -> object:
    """Rules in JSON."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise RejectedError(f"JSON, a list of {RULE}") from None


def words_from_text(text: str) -> list[str]:
    """Words with commas between."""
    return [word.strip() for word in text.split(",")]
