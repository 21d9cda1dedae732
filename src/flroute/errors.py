"""Every error flroute raises on its own account.

Each says what happened, to which op, tensor and device, why, and what to do next. An error raised by a
kernel is the kernel's: it reaches the caller unchanged, with a note (PEP 678) that names the op.
"""

from __future__ import annotations


class FlrouteError(RuntimeError):
    """The root of flroute's own errors."""


class CompatibilityError(FlrouteError, ImportError):
    """This PyTorch lacks something flroute relies on, or another package owns the device slot."""


class SettingsError(FlrouteError, ValueError):
    """A setting has an unknown name or value; the message names the file and line, or the variable."""


class UnknownVendorError(FlrouteError, LookupError):
    """No loaded vendor has this name."""


class DeviceError(FlrouteError):
    """A device that does not exist, or tensors on different devices in one call."""


class AutocastError(FlrouteError):
    """``torch.autocast("fl")`` forbids an op, or cannot say which dtype its arguments have in common."""


class CheckpointError(FlrouteError):
    """A file of tensors is damaged, or of another format."""


class ComparisonError(FlrouteError):
    """Two runs that are not of the same model, parameters, inputs and seed: what differs in them says nothing."""


class StreamError(DeviceError, ValueError):
    """A stream or event of another device, or an event asked for a time it does not have."""


class VendorError(FlrouteError):
    """A vendor package broke a rule: plugin, hook, definition, and the rule broken."""

    def __init__(self, plugin: str, hook: str, definition: str, rule: str) -> None:
        self.plugin, self.hook, self.definition, self.rule = plugin, hook, definition, rule
        super().__init__(f"vendor plugin {plugin!r}, hook {hook!r}: {rule}\n  definition: {definition}")


class KernelResultError(FlrouteError):
    """A kernel returned the wrong number of results, or one of a wrong shape, dtype or device."""


class LockError(FlrouteError):
    """``flroute.lock`` cannot be read, or this environment is not the one it describes."""


class CollectiveError(FlrouteError):
    """A collective that did not finish, or that the ranks do not agree on; the message names op, number and ranks."""


class BisectError(FlrouteError):
    """``bisect`` cannot look for ops, and says why: the metric raised, is not the same twice, or is wrong on the host, too."""


class FallbackError(FlrouteError):
    """Only the host could do the work, and the session's policy is ``fallback="error"``."""


class ShadowError(FlrouteError, ValueError):
    """A shadow run that cannot be: no such reference, a sample that is none, or values of two records in one call."""


class Unsupported(FlrouteError):
    """Raised by a kernel, before it has written anything, for a case it does not serve.

    The router records the reason and tries the next candidate.

    Example:
        >>> def gelu(x, *, approximate="none"):
        ...     if approximate != "none":
        ...         raise Unsupported("only approximate='none'")
    """
