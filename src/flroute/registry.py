"""Vendors and their kernels, found through pluggy and checked before anything can run.

A vendor package that fails to import, brings no device, or returns garbage from a hook is named and skipped; a kernel
that breaks a rule is skipped alone. ``flroute doctor`` lists both; neither can keep flroute from importing.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from flroute import hookspecs
from flroute.device import table
from flroute.device.memory import DeviceFacts, Memory
from flroute.device.pool_settings import configure_pool
from flroute.device.streams import Streams
from flroute.errors import UnknownVendorError, VendorError
from flroute.kernels import Decomposition, Kernel
from flroute.settings import load_settings
from flroute.torch_compat import decomposition_of, find_op, overloads_of, schema_of

_VENDOR_NAME = re.compile(r"[a-z][a-z0-9_]*")
_Names = dict[tuple[str, str], tuple[str, Kernel]]
"""By op and kernel name: the plugin that brought the kernel, and the kernel."""


@dataclass(frozen=True)
class Vendor:
    """A maker of devices.

    Args:
        name: lower-case identifier, used in ``enable(device=name)`` and in kernel names.
        version: of the vendor package.
        devices: facts of each device, in the vendor's own order; at least one.
        memory: how its memory works.
        kernels: what it computes itself, best candidates first; see ``collect_kernels``.
        driver_version: for ``flroute doctor``; ``None`` if there is no driver.
        firmware_version: likewise.
        streams: how its streams and events work; as it stands, for kernels that have finished when they return.
        tolerances: how far its kernels may be from the exact result, where that is not what flroute allows: ``(rtol, atol)`` by
            dtype (``"*"``: any), by op (a pattern) or class of ops; see ``docs/tolerances.md``.
    """

    name: str
    version: str
    devices: Sequence[DeviceFacts]
    memory: Memory
    kernels: Collection[Kernel] = field(default=(), repr=False)  # there may be thousands
    driver_version: str | None = None
    firmware_version: str | None = None
    streams: Streams = field(default_factory=Streams)
    tolerances: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict, repr=False)


@dataclass
class Registry:
    """What was found.

    Attributes:
        vendors: by name, in the order their devices are numbered.
        kernels: by vendor name and op, best candidate first.
        decompositions: by vendor name and op, those that plugins bring.
        problems: what was skipped, and the rule it broke.
        unknown_ops: kernels for ops that this PyTorch does not have, as ``vendor: op``.
    """

    manager: pluggy.PluginManager
    vendors: dict[str, Vendor] = field(default_factory=dict)
    kernels: dict[str, dict[str, tuple[Kernel, ...]]] = field(default_factory=dict)
    decompositions: dict[str, dict[str, Callable[..., Any]]] = field(default_factory=dict)
    problems: list[VendorError] = field(default_factory=list)
    unknown_ops: list[str] = field(default_factory=list)
    _plugin_of: dict[str, str] = field(default_factory=dict, repr=False)

    def vendor(self, name: str) -> Vendor:
        """The vendor called ``name``.

        Raises:
            UnknownVendorError: lists those there are, those that failed, and how to install one.
        """
        if name in self.vendors:
            return self.vendors[name]
        failed = "".join(f"\n  failed to load: {problem}" for problem in self.problems)
        raise UnknownVendorError(
            f"no vendor named {name!r}. Vendors in this environment: {', '.join(self.vendors) or 'none'}. "
            f"A vendor is a package with an entry point in the group 'flroute': pip install the one for your chip, "
            f"then run `flroute doctor`.{failed}"
        )

    def candidates(self, vendor: str, op: str) -> tuple[Kernel, ...]:
        """Kernels of ``vendor`` for ``op``, best first."""
        return self.kernels.get(vendor, {}).get(op, ())

    def add(self, plugin: object, name: str) -> list[Vendor]:
        """Register one plugin and take in what it brings; returns its vendors. What breaks a rule goes to ``problems``."""
        if self.manager.has_plugin(name):
            self._problem(name, "register", plugin, f"a plugin named {name!r} is already registered")
            return []
        try:
            self.manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            self._problem(name, "register", plugin, str(error))
            return []
        found = self._ask(plugin, name, "flroute_vendors")
        added = [vendor for vendor in found if self._accept(vendor, plugin, name)]
        self.rebuild_kernels()
        return added

    def remove(self, plugin: object, vendors: list[Vendor]) -> None:
        """Forget a plugin and its vendors."""
        if self.manager.is_registered(plugin):
            self.manager.unregister(plugin)
        for vendor in vendors:
            del self.vendors[vendor.name]
        self.rebuild_kernels()

    def _ask(self, plugin: object, name: str, hook: str, **arguments: Any) -> list[Any]:
        """What one plugin's hook yields; an answer that cannot be used is a problem and counts as none."""
        if not any(caller.name == hook for caller in self.manager.get_hookcallers(plugin) or ()):
            return []
        others = [p for p in self.manager.get_plugins() if p is not plugin]
        call = self.manager.subset_hook_caller(hook, remove_plugins=others)
        try:
            return [item for answer in call(**arguments) for item in answer]
        except Exception as error:  # noqa: BLE001 -- a vendor's code may raise anything
            self._problem(name, hook, plugin, f"the hook raised {type(error).__name__}: {error}")
            return []

    def _accept(self, vendor: Any, plugin: object, plugin_name: str) -> bool:
        rule = _broken_rule(vendor, self.vendors)
        if rule:
            self._problem(plugin_name, "flroute_vendors", plugin, rule)
            return False
        self.vendors[vendor.name] = vendor
        self._plugin_of[vendor.name] = plugin_name
        return True

    def rebuild_kernels(self) -> None:
        """Collect every vendor's kernels anew. Those that plugins bring come before its own, which keep their names."""
        for vendor in self.vendors.values():
            names: _Names = {}
            own = self._plugin_of.get(vendor.name, vendor.name)
            last = self._collect(names, vendor, vendor.kernels, own, "flroute_vendors")
            first: list[tuple[str, Kernel]] = []
            for name, plugin in self.manager.list_name_plugin():  # in the order they came
                extra = self._ask(plugin, name, "flroute_kernels", vendor=vendor.name)
                first += self._collect(names, vendor, extra, name, "flroute_kernels")
            table: dict[str, tuple[Kernel, ...]] = {}
            for op, kernel in (*first, *last):
                table[op] = (*table.get(op, ()), kernel)
            self.kernels[vendor.name] = table
            self.decompositions[vendor.name] = self._collect_decompositions(vendor)

    def _collect_decompositions(self, vendor: Vendor) -> dict[str, Callable[..., Any]]:
        found: dict[str, Callable[..., Any]] = {}
        for name, plugin in self.manager.list_name_plugin():
            for brought in self._ask(plugin, name, "flroute_decompositions", vendor=vendor.name):
                rule = broken_decomposition_rule(brought)
                if rule is None:
                    op = find_op(brought.op)
                    found.setdefault(op.name(), brought.function or decomposition_of(op))  # type: ignore[union-attr, arg-type]
                else:
                    self._problem(name, "flroute_decompositions", plugin, rule)
        return found

    def _collect(
        self, names: _Names, vendor: Vendor, kernels: Iterable[Any], plugin: str, hook: str
    ) -> list[tuple[str, Kernel]]:
        """The kernels that break no rule, each with its op; their names are added to those taken."""
        found: list[tuple[str, Kernel]] = []
        for kernel in kernels:
            op = find_op(kernel.op) if isinstance(kernel, Kernel) else None
            rule = broken_kernel_rule(kernel)
            if rule is None and (taken := names.get((op.name(), kernel.name))) is not None:  # type: ignore[union-attr]
                rule = self._clash(kernel, plugin, vendor, *taken)
            if rule is None:
                names[op.name(), kernel.name] = plugin, kernel  # type: ignore[union-attr]
                found.append((op.name(), kernel))  # type: ignore[union-attr]
                continue
            if isinstance(kernel, Kernel) and op is None:
                self.unknown_ops.append(f"{vendor.name}: {kernel.op}")
                if not overloads_of(kernel.op):
                    continue  # an op of another release: a matter of coverage; a wrong overload is a mistake
            self._problem(plugin, hook, kernel.function if isinstance(kernel, Kernel) else kernel, rule)
        return found

    def _clash(self, kernel: Kernel, plugin: str, vendor: Vendor, owner: str, other: Kernel) -> str:
        """What to do about a kernel whose name another one of the op has."""
        remedy = f"Rename its function, or give it another implementation than {kernel.implementation!r}."
        where = definition_of(other.function)
        if owner == plugin:
            return (
                f"two kernels named {kernel.name!r} for {kernel.op}: names must tell them apart, and the other one is "
                f"at {where}. {remedy}"
            )
        own = owner == self._plugin_of.get(vendor.name, vendor.name)
        whose = "the vendor's own" if own else f"those of plugin {owner!r}"
        return (
            f"the kernel {kernel.name!r} that plugin {plugin!r} brings to vendor {vendor.name!r} for {kernel.op} has the "
            f"name of one of {whose}, at {where}: names must tell them apart. {remedy}"
        )

    def _problem(self, plugin: str, hook: str, definition: object, rule: str) -> None:
        problem = VendorError(plugin, hook, definition_of(definition), rule)
        if str(problem) not in {str(known) for known in self.problems}:
            self.problems.append(problem)


def definition_of(definition: object) -> str:
    """``file:line`` of a definition, or its repr."""
    definition = getattr(definition, "func", definition)  # what a partial wraps
    try:
        file = inspect.getsourcefile(definition)  # type: ignore[arg-type]
        line = 1 if inspect.ismodule(definition) else inspect.getsourcelines(definition)[1]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return repr(definition)
    return f"{file}:{line}"


def _broken_rule(vendor: Any, known: dict[str, Vendor]) -> str | None:
    if not isinstance(vendor, Vendor):
        return f"flroute_vendors must yield Vendor objects, it yielded {vendor!r}"
    if not isinstance(vendor.name, str) or not _VENDOR_NAME.fullmatch(vendor.name):
        return f"a vendor's name is a lower-case identifier, got {vendor.name!r}"
    if vendor.name in known:
        return f"vendor {vendor.name!r} is already there; two packages cannot bring the same vendor"
    if not vendor.devices:
        return f"vendor {vendor.name!r} has no devices; leave it out where its hardware is absent"
    if not all(isinstance(facts, DeviceFacts) for facts in vendor.devices):
        return f"vendor {vendor.name!r}: devices must be DeviceFacts, got {vendor.devices!r}"
    if not isinstance(vendor.memory, Memory):
        return f"vendor {vendor.name!r}: memory must implement flroute.vendor.Memory, got {vendor.memory!r}"
    if rule := _broken_tolerance_rule(vendor.tolerances):
        return f"vendor {vendor.name!r}: {rule}"
    try:
        list(vendor.kernels)
    except Exception as error:  # noqa: BLE001 -- a vendor's code may raise anything
        return (
            f"vendor {vendor.name!r}: kernels must be a list or tuple of Kernel objects, going through "
            f"{vendor.kernels!r} raised {type(error).__name__}: {error}"
        )
    return None


def _broken_tolerance_rule(tolerances: Any) -> str | None:
    try:
        wrong = [
            f"{about!r}: {{{dtype!r}: {pair!r}}}"
            for about, by_dtype in tolerances.items()
            for dtype, pair in by_dtype.items()
            if not (len(pair) == 2 and all(number >= 0 for number in pair))
        ]
    except (AttributeError, TypeError):
        wrong = [repr(tolerances)]
    if not wrong:
        return None
    return f"tolerances are {{op or class: {{dtype: (rtol, atol)}}}}, got {wrong[0]}"


def broken_kernel_rule(kernel: Any) -> str | None:
    """The rule a kernel breaks by itself, in words, or ``None``."""
    if not isinstance(kernel, Kernel):
        return f"kernels must be Kernel objects, got {kernel!r}"
    if not callable(kernel.function):
        return f"the kernel of {kernel.op} must be a function, got {kernel.function!r}"
    op = find_op(kernel.op)
    if op is None:
        overloads = ", ".join(overloads_of(kernel.op))
        hint = f"; its overloads are {overloads}" if overloads else ""
        return f"{_UNKNOWN_OP} {kernel.op!r}, which kernel {kernel.name} computes{hint}"
    return _signature_rule(kernel, op)


def broken_decomposition_rule(brought: Any) -> str | None:
    """The rule a decomposition breaks, in words, or ``None``."""
    if not isinstance(brought, Decomposition):
        return f"decompositions must be Decomposition objects, got {brought!r}"
    op = find_op(brought.op)
    if op is None:
        return f"{_UNKNOWN_OP} {brought.op!r}, which is to be decomposed"
    if brought.function is None and decomposition_of(op) is None:
        return f"PyTorch has no decomposition of {brought.op}: Decomposition({brought.op!r}, function) brings one"
    if brought.function is not None and not callable(brought.function):
        return f"the decomposition of {brought.op} must be a function, got {brought.function!r}"
    return None


def _signature_rule(kernel: Kernel, op: Any) -> str | None:
    """Whether the function can be called as the schema says, with the schema's own defaults."""
    schema = schema_of(op)
    try:
        parameters = inspect.signature(kernel.function).parameters
    except (ValueError, TypeError) as error:  # builtins, and numpy's ufuncs before numpy 2.4
        return f"kernel {kernel.name} has no signature to compare with {schema}: {error}; wrap it in a def"
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
        return f"kernel {kernel.name}: *args and **kwargs hide what it serves; name the arguments of {schema}"
    positional = [p for p in parameters.values() if p.kind != inspect.Parameter.KEYWORD_ONLY]
    keywords = {p.name: p for p in parameters.values() if p.kind == inspect.Parameter.KEYWORD_ONLY}
    expected = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(positional) != len(expected):
        return f"kernel {kernel.name} takes {len(positional)} positional arguments, {kernel.op} has {len(expected)}: {schema}"
    named = {argument.name: argument for argument in schema.arguments if argument.kwarg_only}
    if set(keywords) != set(named):
        return (
            f"kernel {kernel.name} has the keyword-only arguments {sorted(keywords)}, {kernel.op} has {sorted(named)}: "
            f"{schema}"
        )
    pairs = [*zip(positional, expected, strict=True), *((keywords[name], named[name]) for name in named)]
    for parameter, argument in pairs:
        if not _same_default(parameter, argument):
            return (
                f"kernel {kernel.name}: argument {parameter.name!r} must have the default of the schema, "
                f"{argument.default_value if argument.has_default_value() else 'none'}: {schema}"
            )
    return None


def _same_default(parameter: inspect.Parameter, argument: Any) -> bool:
    if not argument.has_default_value():
        return parameter.default is inspect.Parameter.empty
    default, expected = parameter.default, argument.default_value
    if isinstance(default, tuple | list) and isinstance(expected, tuple | list):
        return list(default) == list(expected)
    return type(default) is type(expected) and bool(default == expected)


_registry: Registry | None = None
_lock = threading.RLock()


def load() -> Registry:
    """The registry; the first call loads every vendor package that is installed."""
    global _registry
    if _registry is None:
        with _lock:
            if _registry is None:
                _registry = _load(entry_points(group=hookspecs.PROJECT))
    return _registry


def _load(found: Iterable[EntryPoint]) -> Registry:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    registry = Registry(manager)
    default = load_settings().default_vendor
    for entry in sorted(found, key=lambda e: (e.name != default, e.name)):
        try:
            plugin = entry.load()
        except Exception as error:  # noqa: BLE001 -- a broken vendor package must not break flroute: it is named and skipped
            registry.problems.append(
                VendorError(
                    entry.name, "import", entry.value, f"importing it raised {type(error).__name__}: {error}"
                )
            )
            continue
        registry.add(plugin, entry.name)
    order = sorted(registry.vendors.values(), key=lambda vendor: (vendor.name != default, vendor.name))
    registry.vendors = {vendor.name: vendor for vendor in order}
    return registry


def register(plugin: object, name: str) -> tuple[table.Device, ...]:
    """Add a plugin to the running process; returns the devices it brings, numbered after those there are.

    Raises:
        VendorError: it broke a rule; nothing of it stays registered.
    """
    registry = load()
    known, count = len(registry.problems), table.device_count()
    added = registry.add(plugin, name)
    problems = [
        p for p in registry.problems[known:] if p.plugin == name and not p.rule.startswith(_UNKNOWN_OP)
    ]
    if not problems and count + sum(len(vendor.devices) for vendor in added) > _MAX_DEVICES:
        rule = f"PyTorch numbers at most {_MAX_DEVICES} devices, and {count} are taken"
        problems = [VendorError(name, "flroute_vendors", definition_of(plugin), rule)]
    if problems:
        del registry.problems[known:]
        if problems[0].hook != "register":
            registry.remove(plugin, added)
        raise problems[0]
    for changed in _listeners:
        changed()
    return tuple(
        device for vendor in added for device in table.append(_devices_of(vendor, table.device_count()))
    )


def on_change(listener: Callable[[], None]) -> None:
    """Call ``listener`` whenever a plugin joins the running process."""
    _listeners.append(listener)


_listeners: list[Callable[[], None]] = []
_MAX_DEVICES = 128  # c10::DeviceIndex is an int8
_UNKNOWN_OP = "this PyTorch has no op"


def _devices_of(vendor: Vendor, start: int) -> list[table.Device]:
    devices = [
        table.Device(start + i, vendor.name, i, facts, vendor.memory, vendor.streams)
        for i, facts in enumerate(vendor.devices)
    ]
    for device in devices:
        configure_pool(device, load_settings().alloc_conf)
    return devices


def _deal_out_devices() -> list[table.Device]:
    devices: list[table.Device] = []
    for vendor in load().vendors.values():
        devices.extend(_devices_of(vendor, len(devices)))
    return devices


table.set_source(_deal_out_devices)
