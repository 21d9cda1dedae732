"""Vendors and their kernels, found through pluggy and checked before anything can run.

A vendor package that fails to import, brings no device, or returns garbage from a hook is named and skipped; a kernel
that breaks a rule is skipped alone. ``flroute doctor`` lists both; neither can keep flroute from importing.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from flroute import hookspecs
from flroute.device import table
from flroute.device.memory import DeviceFacts, Memory
from flroute.errors import UnknownVendorError, VendorError
from flroute.kernels import Kernel
from flroute.settings import load_settings
from flroute.torch_compat import find_op, overloads_of

_VENDOR_NAME = re.compile(r"[a-z][a-z0-9_]*")


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
    """

    name: str
    version: str
    devices: Sequence[DeviceFacts]
    memory: Memory
    kernels: Iterable[Kernel] = ()
    driver_version: str | None = None
    firmware_version: str | None = None


@dataclass
class Registry:
    """What was found.

    Attributes:
        vendors: by name, in the order their devices are numbered.
        kernels: by vendor name and op, best candidate first.
        problems: what was skipped, and the rule it broke.
        unknown_ops: kernels for ops that this PyTorch does not have, as ``vendor: op``.
    """

    manager: pluggy.PluginManager
    vendors: dict[str, Vendor] = field(default_factory=dict)
    kernels: dict[str, dict[str, tuple[Kernel, ...]]] = field(default_factory=dict)
    problems: list[VendorError] = field(default_factory=list)
    unknown_ops: list[str] = field(default_factory=list)

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
        try:
            self.manager.register(plugin, name)
        except (pluggy.PluginValidationError, ValueError) as error:
            self._problem(name, "register", plugin, str(error))
            return []
        added = [vendor for vendor in self._ask(plugin, name) if self._accept(vendor, plugin, name)]
        self._add_extra_kernels()
        return added

    def _ask(self, plugin: object, name: str) -> list[Any]:
        if not any(caller.name == "flroute_vendors" for caller in self.manager.get_hookcallers(plugin) or ()):
            return []
        others = [p for p in self.manager.get_plugins() if p is not plugin]
        hook = self.manager.subset_hook_caller("flroute_vendors", remove_plugins=others)
        try:
            return [vendor for answer in hook() for vendor in answer]
        except (
            Exception
        ) as error:  # a vendor's code may raise anything; it must not take flroute down with it
            self._problem(name, "flroute_vendors", plugin, f"the hook raised {type(error).__name__}: {error}")
            return []

    def _accept(self, vendor: Any, plugin: object, plugin_name: str) -> bool:
        rule = _broken_rule(vendor, self.vendors)
        if rule:
            self._problem(plugin_name, "flroute_vendors", plugin, rule)
            return False
        self.vendors[vendor.name] = vendor
        self.kernels[vendor.name] = {}
        self._add_kernels(vendor.name, vendor.kernels, plugin_name, "flroute_vendors", first=False)
        return True

    def _add_extra_kernels(self) -> None:
        """Kernels that plugins bring for vendors of others; asked again whenever a vendor or plugin comes in."""
        for plugin in self.manager.get_plugins():
            name = self.manager.get_name(plugin) or "?"
            others = [p for p in self.manager.get_plugins() if p is not plugin]
            hook = self.manager.subset_hook_caller("flroute_kernels", remove_plugins=others)
            for vendor in self.vendors:
                try:
                    found = [kernel for answer in hook(vendor=vendor) for kernel in answer]
                except Exception as error:  # as in _ask
                    self._problem(
                        name, "flroute_kernels", plugin, f"the hook raised {type(error).__name__}: {error}"
                    )
                    continue
                self._add_kernels(vendor, found, name, "flroute_kernels", first=True)

    def _add_kernels(
        self, vendor: str, kernels: Iterable[Kernel], plugin: str, hook: str, *, first: bool
    ) -> None:
        known = self.kernels[vendor]
        for kernel in kernels:
            present = known.get(kernel.op, ())
            if kernel in present:
                continue
            rule = broken_kernel_rule(kernel, present)
            if rule:
                self._problem(plugin, hook, kernel.function if isinstance(kernel, Kernel) else kernel, rule)
                if isinstance(kernel, Kernel) and find_op(kernel.op) is None:
                    self.unknown_ops.append(f"{vendor}: {kernel.op}")
                continue
            op = find_op(kernel.op).name()  # type: ignore[union-attr]
            present = known.get(op, ())
            known[op] = (kernel, *present) if first else (*present, kernel)

    def _problem(self, plugin: str, hook: str, definition: object, rule: str) -> None:
        self.problems.append(VendorError(plugin, hook, _where(definition), rule))


def _where(definition: object) -> str:
    """``file:line`` of a definition, or its repr."""
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
    return None


def broken_kernel_rule(kernel: Any, same_op: Sequence[Kernel] = ()) -> str | None:
    """The rule a kernel breaks, in words, or ``None``."""
    if not isinstance(kernel, Kernel):
        return f"kernels must be Kernel objects, got {kernel!r}"
    op = find_op(kernel.op)
    if op is None:
        overloads = ", ".join(overloads_of(kernel.op))
        hint = f"; its overloads are {overloads}" if overloads else ""
        return f"kernel {kernel.name}: this PyTorch has no op {kernel.op!r}{hint}"
    if any(other.name == kernel.name for other in same_op):
        return f"two kernels named {kernel.name!r} for {kernel.op}: names must tell them apart"
    return _signature_rule(kernel, op)


def _signature_rule(kernel: Kernel, op: Any) -> str | None:
    """Whether the function can be called as the schema says, with the schema's own defaults."""
    parameters = inspect.signature(kernel.function).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or inspect.Parameter.VAR_KEYWORD in kinds:
        return f"kernel {kernel.name}: *args and **kwargs hide what it serves; name the arguments of {op._schema}"
    positional = [p for p in parameters.values() if p.kind != inspect.Parameter.KEYWORD_ONLY]
    keywords = {p.name: p for p in parameters.values() if p.kind == inspect.Parameter.KEYWORD_ONLY}
    expected = [argument for argument in op._schema.arguments if not argument.kwarg_only]
    if len(positional) != len(expected):
        return f"kernel {kernel.name} takes {len(positional)} positional arguments, {kernel.op} has {len(expected)}: {op._schema}"
    named = {argument.name: argument for argument in op._schema.arguments if argument.kwarg_only}
    if set(keywords) != set(named):
        return f"kernel {kernel.name} has the keyword-only arguments {sorted(keywords)}, {kernel.op} has {sorted(named)}: {op._schema}"
    pairs = [*zip(positional, expected, strict=True), *((keywords[name], named[name]) for name in named)]
    for parameter, argument in pairs:
        if not _same_default(parameter, argument):
            return (
                f"kernel {kernel.name}: argument {parameter.name!r} must have the default of the schema, "
                f"{argument.default_value if argument.has_default_value() else 'none'}: {op._schema}"
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
        except Exception as error:  # a broken vendor package must not break flroute: it is named and skipped
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
    known = len(registry.problems)
    table.devices()
    added = registry.add(plugin, name)
    if len(registry.problems) > known:
        problem = registry.problems.pop()
        registry.manager.unregister(plugin)
        for vendor in added:
            del registry.vendors[vendor.name], registry.kernels[vendor.name]
        raise problem
    return tuple(
        device for vendor in added for device in table.append(_devices_of(vendor, table.device_count()))
    )


def _devices_of(vendor: Vendor, start: int) -> list[table.Device]:
    return [
        table.Device(start + i, vendor.name, i, facts, vendor.memory)
        for i, facts in enumerate(vendor.devices)
    ]


def _deal_out_devices() -> list[table.Device]:
    devices: list[table.Device] = []
    for vendor in load().vendors.values():
        devices.extend(_devices_of(vendor, len(devices)))
    return devices


table.set_source(_deal_out_devices)
