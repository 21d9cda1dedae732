"""Settings: from arguments, ``FLROUTE_*`` variables, ``flroute.toml``, and ``[tool.flroute]`` in pyproject.toml.

The first of these that names a setting wins. Nothing is ignored in silence: an unknown name or value is a
``SettingsError`` that says where it stands. This module does not import PyTorch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flroute.errors import SettingsError
from flroute.policy import Rule, RuleError, contradiction, placed, read_rule
from flroute.setting_values import RejectedError
from flroute.settings_table import PREFIX, SETTINGS, VARIABLES, Setting, Settings
from flroute.toml_files import Keys, dig, line_of, read_toml

__all__ = [
    "CHANGEABLE",
    "PREFIX",
    "SETTINGS",
    "VARIABLES",
    "Origin",
    "Setting",
    "Settings",
    "changed",
    "explain_file",
    "explain_settings",
    "load_settings",
    "unknown_variables",
]


@dataclass(frozen=True)
class Origin:
    """A value, and where it was found, in words: ``flroute.toml:3``, ``FLROUTE_DEVICE`` or ``argument``.

    Attributes:
        value: as a field of ``Settings``.
        where: in words.
        places: for an order, where each op stands.
    """

    value: Any
    where: str
    places: Mapping[str, str] = field(default_factory=dict)


def load_settings(**arguments: Any) -> Settings:
    """The settings in force here and now.

    Args:
        arguments: fields of ``Settings``; ``None`` means not given.

    Raises:
        SettingsError: an unknown name or value, with the file and line or the variable that holds it.

    Example:
        >>> load_settings(fallback="error").fallback.value
        'error'
    """
    return Settings(**{name: origin.value for name, origin in explain_settings(**arguments).items()})


CHANGEABLE = ("fallback", "precision", "fast_fallback", "order", "rules", "allow", "deny")
"""Settings that a session may change while it is open."""


def changed(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """``settings`` with others in place; an order and rules come before those there are.

    Args:
        settings: in force.
        changes: from names in ``CHANGEABLE`` to values, as arguments.

    Raises:
        SettingsError: an unknown name or value, or a setting that is fixed once a session is open.
    """
    for name in changes:
        if name in SETTINGS and name not in CHANGEABLE:
            raise SettingsError(
                f"argument: {name!r} is fixed once a session is open: give it to enable(). "
                f"These may change: {', '.join(CHANGEABLE)}."
            )
    found = _from_arguments(changes)
    for name in ("order", "rules"):
        if name in found:
            found[name] = _before(found[name], Origin(getattr(settings, name), ""))
    _check_lists({name: Origin(getattr(settings, name), "the session") for name in ("allow", "deny")} | found)
    return replace(settings, **{name: origin.value for name, origin in found.items()})


def explain_settings(**arguments: Any) -> dict[str, Origin]:
    """The settings that are not at their default, each with where it comes from.

    Args:
        arguments: as for ``load_settings``.

    Raises:
        SettingsError: as for ``load_settings``.
    """
    found: dict[str, Origin] = {}
    for layer in (_from_files(), _from_environment(), _from_arguments(arguments)):
        for name, origin in layer.items():
            found[name] = (
                _before(origin, found[name]) if name in ("order", "rules") and name in found else origin
            )
    _check_lists(found)
    return found


def _before(origin: Origin, earlier: Origin) -> Origin:
    """Orders of different ops, and rules, add up; what wins comes first."""
    where = f"{earlier.where}, {origin.where}"
    if isinstance(origin.value, tuple):
        return Origin((*origin.value, *earlier.value), where)
    kept = {op: words for op, words in earlier.value.items() if op not in origin.value}
    return Origin({**origin.value, **kept}, where, {**earlier.places, **origin.places})


def _check_lists(found: Mapping[str, Origin]) -> None:
    if "allow" not in found or "deny" not in found:
        return
    allow, deny = found["allow"], found["deny"]
    if both := [word for word in allow.value if word in deny.value]:
        raise SettingsError(
            f"{deny.where}: {both[0]!r} is denied, and allowed at {allow.where}. Take it out of one of them."
        )


def explain_file(path: Path) -> dict[str, Origin]:
    """What one file says, alone: ``[tool.flroute]`` of a pyproject.toml, or all of any other.

    Args:
        path: of the file.

    Raises:
        SettingsError: it is not there, says nothing, or is wrong.
    """
    if not path.is_file():
        raise SettingsError(f"{path} cannot be read: there is no such file.")
    found = _read(path, table=("tool", "flroute") if path.name == "pyproject.toml" else ())
    if found is None:
        raise SettingsError(f"{path} has no table [tool.flroute].")
    _check_lists(found)
    return found


def unknown_variables() -> dict[str, str | None]:
    """Every ``FLROUTE_*`` variable that is set and means nothing, with the one that may have been meant."""
    unknown = [
        name
        for name, text in os.environ.items()
        if name.startswith(PREFIX) and text and name not in VARIABLES
    ]
    meant = {
        name: difflib.get_close_matches(name.removeprefix(PREFIX).lower(), SETTINGS, n=1) for name in unknown
    }
    return {name: SETTINGS[close[0]].variable if close else None for name, close in meant.items()}


def _from_arguments(arguments: Mapping[str, Any]) -> dict[str, Origin]:
    found = {}
    for name, value in arguments.items():
        setting = _known(name, SETTINGS, "argument", "setting")
        if value is not None and not setting.in_arguments:
            raise SettingsError(
                f"argument {name}: it holds for the whole process, not for one session; "
                f"set the variable {setting.variable} instead."
            )
        if value is not None:
            found[name] = _in_one_place(
                name, _converted(setting.convert, value, name, f"argument {name}"), "argument"
            )
    return found


def _from_environment() -> dict[str, Origin]:
    found = {}
    for variable, text in os.environ.items():
        if variable.startswith(PREFIX) and text:  # an empty variable counts as not set
            setting = _known(variable, VARIABLES, "environment", "variable")
            value = _converted(setting.parse, text, setting.name, f"environment variable {variable}")
            found[setting.name] = _in_one_place(setting.name, value, variable)
    return found


def _in_one_place(name: str, value: Any, where: str) -> Origin:
    if name == "rules":
        return Origin(
            _agreeing(tuple([rule if rule.where else placed(rule, where) for rule in value])), where
        )
    return Origin(value, where, dict.fromkeys(value, where) if name == "order" else {})


def _from_files() -> dict[str, Origin]:
    """What the nearest directory upward that has a file of ours says; there, flroute.toml wins."""
    try:
        start = Path.cwd()
    except FileNotFoundError:  # the working directory was deleted: no files
        return {}
    for directory in (start, *start.parents):
        own = _read(directory / "flroute.toml", table=())
        shared = _read(directory / "pyproject.toml", table=("tool", "flroute"))
        if own is not None or shared is not None:
            return {**(shared or {}), **(own or {})}
    return {}


def _known(name: str, known: Mapping[str, Setting], where: str, what: str) -> Setting:
    if name in known:
        return known[name]
    listing = ", ".join(known)
    raise SettingsError(f"{where}: unknown {what} {name!r}.{_suggestion(name, known)} Known: {listing}.")


def _converted(convert: Callable[[Any], Any], value: Any, name: str, where: str) -> Any:
    try:
        return convert(value)
    except RuleError as error:
        raise SettingsError(f"{where}: {error}.") from None
    except RejectedError as error:
        culprit = error.culprit or value
        suggestion = _suggestion(culprit, error.words) if isinstance(culprit, str) else ""
        why = f": {error.why}" if error.why else ""
        raise SettingsError(
            f"{where}: {value!r} is not allowed for {name!r}{why}.{suggestion} Allowed: {error.allowed}."
        ) from None


def _agreeing(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """The rules of one source, which must not contradict each other."""
    if (pair := contradiction(rules)) is not None:
        one, other = pair
        raise SettingsError(
            f"{other.where}: this rule for {other.op!r} says {list(other.order)}, and the one at {one.where} says "
            f"{list(one.order)} of the same calls. Keep one of them."
        )
    return rules


def _suggestion(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


# Files ------------------------------------------------------------------------------------------------------


def _read(path: Path, table: tuple[str, ...]) -> dict[str, Origin] | None:
    """The settings in one file, or ``None`` if it does not exist or has nothing for us."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _parse(path, table, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=32)
def _parse(path: Path, table: tuple[str, ...], _mtime: int, _size: int) -> dict[str, Origin] | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {error}") from error
    if table and table[-1] not in text:
        return None
    found = dig(read_toml(path, text), table)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise SettingsError(f"{path}:{line_of(text, table)}: {'.'.join(table)} must be a table of settings.")
    return {name: _from_file(path, text, (*table, name), value) for name, value in found.items()}


def _from_file(path: Path, text: str, keys: Keys, value: Any) -> Origin:
    name = str(keys[-1])
    where = f"{path}:{line_of(text, keys)}"
    setting = _known(name, SETTINGS, where, "setting")
    if not setting.in_files:
        raise SettingsError(
            f"{where}: {name!r} is needed before any file is read; set the variable {setting.variable} instead."
        )
    if name == "rules" and isinstance(value, list):
        places = [f"{path}:{line_of(text, (*keys, at))}" for at in range(len(value))]
        rules = [
            placed(_converted(read_rule, item, name, at), at) for item, at in zip(value, places, strict=True)
        ]
        return Origin(_agreeing(tuple(rules)), where)
    converted = _converted(setting.convert, value, name, where)
    if name != "order":
        return Origin(converted, where)
    return Origin(converted, where, {op: f"{path}:{line_of(text, (*keys, op))}" for op in converted})
