"""Settings: from arguments, ``FLROUTE_*`` variables, ``flroute.toml``, and ``[tool.flroute]`` in pyproject.toml.

The first of these that names a setting wins. Nothing is ignored in silence: an unknown name or value is a
``SettingsError`` that says where it stands. This module does not import PyTorch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from flroute import setting_values as values
from flroute.errors import SettingsError
from flroute.policy import Policy, Rule, RuleError, contradiction, placed, policy_of, read_rule
from flroute.setting_values import RejectedError
from flroute.toml_files import Keys, dig, line_of, read_toml
from flroute.vocabulary import FallbackPolicy, Precision

PREFIX = "FLROUTE_"


@dataclass(frozen=True)
class Settings:
    """The settings in force; ``SETTINGS`` describes each field.

    Attributes:
        device: the device ``enable`` takes when it is given none.
        fallback: what happens when only the host can do the work.
        precision: the least exact kernels that may be chosen.
        default_device: whether new tensors land on the session's device.
        fast_fallback: whether the host may work on host-visible memory in place of a copy.
        order: for each op, by name or glob, the order in which candidates are tried; the first that names the op decides.
        rules: likewise with conditions, before those; see ``flroute.policy.Rule``.
        allow: words that name vendors, implementations or kernels, or globs; with any, no other kernel is chosen.
        deny: likewise; these are not chosen.
        trace: file for each decision when first taken, and for the totals.
        trace_max_bytes: a longer trace is put aside as ``name.1`` before the next session begins in it.
        timing: whether decisions carry the time spent.
        modules: whether every call is counted for the module and phase it comes from, not only each signature's first.
        debug: whether every result of every kernel is checked, and that none keeps an array it was given.
        locked: whether this environment must be the one in the nearest ``flroute.lock``.
        watch_kernels: whether kernels are watched for work they have PyTorch do on the host.
        default_vendor: the vendor whose devices come first.
        autoload: whether a bare ``import torch`` registers the device; ``None`` decides by itself.
        cache_dir: folder for compiled kernels; ``None`` is ``flroute`` in the user's cache folder.
        cache_limit: how many bytes of compiled kernels are kept.
    """

    device: str | None = None
    fallback: FallbackPolicy = FallbackPolicy.WARN
    precision: Precision = Precision.HIGHEST
    default_device: bool = True
    fast_fallback: bool = True
    order: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    trace: str | None = None
    trace_max_bytes: int = 64 * 2**20
    timing: bool = False
    modules: bool = False
    debug: bool = False
    locked: bool = False
    watch_kernels: bool = False
    default_vendor: str = "reference"
    autoload: bool | None = None
    cache_dir: str | None = None
    cache_limit: int = 2**29

    @cached_property
    def policy(self) -> Policy:
        """What order, rules, allow and deny say together."""
        return policy_of(self.order, self.rules, self.allow, self.deny)


@dataclass(frozen=True)
class Setting:
    """One setting: its name, what it means, and how a value of it is read.

    Attributes:
        name: the argument, and the key in a file.
        description: one line for people.
        convert: a value from an argument or a file to the field's value.
        from_text: the text of an environment variable to what ``convert`` takes.
        in_files: whether a file may hold it.
        in_arguments: whether one session may differ from another in it.
    """

    name: str
    description: str
    convert: Callable[[object], Any]
    from_text: Callable[[str], object] = str
    in_files: bool = True
    in_arguments: bool = True

    def parse(self, text: str) -> Any:
        """The field's value from the text of an environment variable."""
        return self.convert(self.from_text(text))

    @property
    def allowed(self) -> str:
        """The values it takes, in words."""
        try:
            self.convert(object())
        except RejectedError as error:
            return error.allowed
        raise TypeError(f"the setting {self.name!r} takes anything")

    @property
    def variable(self) -> str:
        """The environment variable, such as ``FLROUTE_FALLBACK``."""
        return PREFIX + self.name.upper()


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("device", 'device of a session: "reference", "reference:1" or "fl:0"', values.word),
        Setting("fallback", "when only the host can do the work: warn, allow or error", values.one_of(FallbackPolicy)),
        Setting("precision", "kernels admitted: highest, high or medium", values.one_of(Precision)),
        Setting("default_device", "new tensors land on the session's device", values.flag, values.flag_from_text),
        Setting("fast_fallback", "the host works on host-visible memory without a copy", values.flag, values.flag_from_text),
        Setting("order", "candidates of an op, in the order to try them", values.order, values.order_from_text),
        Setting("rules", "orders with conditions; the first that holds decides", values.rules, values.rules_from_text),
        Setting("allow", "the only vendors and kernels that may be chosen", values.words, values.words_from_text),
        Setting("deny", "vendors and kernels that may not be chosen", values.words, values.words_from_text),
        Setting("trace", "JSONL file for each decision when first taken, and for the totals", values.path),
        Setting("trace_max_bytes", "bytes of a trace before it is put aside", values.number_of_bytes, values.bytes_from_text),
        Setting("timing", "measure the time of every call", values.flag, values.flag_from_text),
        Setting("modules", "count every call for its module and phase", values.flag, values.flag_from_text),
        Setting("debug", "check every result of every kernel", values.flag, values.flag_from_text),
        Setting("watch_kernels", "find work that kernels have PyTorch do on the host", values.flag, values.flag_from_text),
        Setting("default_vendor", "vendor whose devices come first", values.word, in_arguments=False),
        Setting("locked", "refuse an environment that is not the one in flroute.lock", values.flag, values.flag_from_text),
        Setting(
            "autoload", "register the device on a bare `import torch` (read before any file)",
            values.flag, values.flag_from_text, in_files=False, in_arguments=False,
        ),
        Setting("cache_dir", "folder for compiled kernels", values.path, in_arguments=False),
        Setting(
            "cache_limit", "bytes of compiled kernels kept",
            values.number_of_bytes, values.bytes_from_text, in_arguments=False,
        ),
    )
}  # fmt: skip
"""The one table of settings: arguments, file keys and environment variables are read through it."""

VARIABLES: dict[str, Setting] = {setting.variable: setting for setting in SETTINGS.values()}
"""The same settings by environment variable."""

if set(SETTINGS) != {f.name for f in fields(Settings)}:
    raise TypeError("SETTINGS must describe exactly the fields of Settings")


# Loading ----------------------------------------------------------------------------------------------------


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
        suggestion = _suggestion(value, error.words) if isinstance(value, str) else ""
        raise SettingsError(
            f"{where}: {value!r} is not allowed for {name!r}.{suggestion} Allowed: {error.allowed}."
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
