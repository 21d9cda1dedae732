"""The one table of settings: what each is called, what it means, and which values it takes.

``flroute.settings`` finds their values. This module does not import PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from flroute import setting_values as values
from flroute.policy import Policy, Rule, policy_of
from flroute.setting_values import RejectedError
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
        alias: ``("cuda",)`` has cuda mean the session's device; new tensors then land on the host, as they do with cuda,
            unless ``default_device`` says otherwise.
        hide_cuda: whether an alias may hide a real cuda device.
        watch_kernels: whether kernels are watched for work they have PyTorch do on the host.
        default_vendor: the vendor whose devices come first.
        autoload: whether a bare ``import torch`` registers the device; ``None`` decides by itself.
        session: whether importing PyTorch opens a session for the rest of the process.
        reports: folder in which such a session leaves its report as the process ends.
        cache_dir: folder for compiled kernels; ``None`` is ``flroute`` in the user's cache folder.
        cache_limit: how many bytes of compiled kernels are kept.
        alloc_conf: how devices' pools behave, by cuda's names; see ``flroute.alloc_conf``.
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
    alias: tuple[str, ...] = ()
    hide_cuda: bool = False
    watch_kernels: bool = False
    default_vendor: str = "reference"
    autoload: bool | None = None
    session: bool = False
    reports: str | None = None
    cache_dir: str | None = None
    cache_limit: int = 2**29
    alloc_conf: Mapping[str, int | float] = field(default_factory=dict)

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
        Setting("alias", 'other names of the device: "cuda" is one', values.alias, values.words_from_text),
        Setting("hide_cuda", "an alias may hide a real CUDA device", values.flag, values.flag_from_text),
        Setting(
            "autoload", "register the device on a bare `import torch` (read before any file)",
            values.flag, values.flag_from_text, in_files=False, in_arguments=False,
        ),
        Setting(
            "session", "`import torch` opens a session for the rest of the process",
            values.flag, values.flag_from_text, in_files=False, in_arguments=False,
        ),
        Setting(
            "reports", "folder in which such a session leaves its report, as JSON",
            values.path, in_files=False, in_arguments=False,
        ),
        Setting("cache_dir", "folder for compiled kernels", values.path, in_arguments=False),
        Setting(
            "cache_limit", "bytes of compiled kernels kept",
            values.number_of_bytes, values.bytes_from_text, in_arguments=False,
        ),
        Setting(
            "alloc_conf", "how the pools of devices behave, by the names of PYTORCH_CUDA_ALLOC_CONF",
            values.alloc_conf, values.alloc_conf_from_text, in_arguments=False,
        ),
    )
}  # fmt: skip
"""Arguments, file keys and environment variables are read through this table."""

VARIABLES: dict[str, Setting] = {setting.variable: setting for setting in SETTINGS.values()}
"""The same settings by environment variable."""

if set(SETTINGS) != {f.name for f in fields(Settings)}:
    raise TypeError("SETTINGS must describe exactly the fields of Settings")
