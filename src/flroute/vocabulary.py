"""The words of flroute: one name per idea, the same in code, logs, reports and docs.

Every enum is a ``str``, so a decision compares with plain text: ``decision.route == "native"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from flroute.tables import html_facts, html_part, shown_seconds


class _Word(str, Enum):
    """A ``str`` enum that prints as its value on every supported Python."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Route(_Word):
    """What became of a call."""

    NATIVE = "native"  #: a vendor kernel, or the device's own memory, did the work
    DECOMPOSED = "decomposed"  #: split into other ops, each routed on its own
    FALLBACK = "fallback"  #: PyTorch's host implementation did the work
    VIEW = "view"  #: metadata only, no data was touched
    COPY = "copy"  #: data moved; the bytes are counted
    HOST = "host"  #: no device tensor was involved


class Reason(_Word):
    """Why a route was taken, or why a candidate was rejected."""

    MATCHED = "matched"  #: the first candidate whose conditions all hold
    METADATA = "metadata"  #: a view: the host's own metadata implementation serves every device
    TRANSFER = "transfer"  #: the op is a copy
    COMPOSITE = "composite"  #: no kernel of its own; PyTorch defines it in terms of other ops
    NO_KERNEL = "no_kernel"  #: the vendor has no kernel for this op
    DTYPE = "dtype"  #: a kernel exists, not for these dtypes
    LAYOUT = "layout"  #: a kernel exists, not for this memory layout
    SIZE = "size"  #: a kernel exists, for larger tensors
    PREDICATE = "predicate"  #: the kernel's ``when=`` said no
    UNSUPPORTED = "unsupported"  #: the kernel raised ``Unsupported`` before it wrote anything
    POLICY = "policy"  #: the session's settings exclude it
    PRECISION = "precision"  #: the kernel's precision is below what the session admits
    IN_KERNEL = "in_kernel"  #: a kernel had the host do this: through ``host_fallback``, or in secret


class Phase(_Word):
    """What a program is about when it makes a call."""

    FORWARD = "forward"  #: anything that is neither of the others
    BACKWARD = "backward"  #: inside the autograd engine
    OPTIMIZER = "optimizer"  #: inside ``torch.optim``: a step, or ``zero_grad``


class OpState(_Word):
    """What a vendor makes of an op, as far as it can be said without a call."""

    NATIVE = "native"  #: the vendor has a kernel, or the device's memory does it
    DECOMPOSED = "decomposed"  #: split into other ops when it is called
    COMPOSITE = "composite"  #: split by PyTorch before a device sees it
    VIEW = "view"  #: metadata only
    FALLBACK = "fallback"  #: the host does it
    ABSENT = "absent"  #: PyTorch has no kernel of it for dense tensors on the host either


class FallbackPolicy(_Word):
    """What happens when only the host can do the work."""

    WARN = "warn"  #: log a warning once per op and reason, and go on
    ALLOW = "allow"  #: go on; the decision is recorded all the same
    ERROR = "error"  #: raise ``FallbackError`` before any work is done


class Precision(_Word):
    """PyTorch's words for how exact a kernel is (``torch.set_float32_matmul_precision``)."""

    HIGHEST = "highest"  #: keeps the accuracy of the input type
    HIGH = "high"  #: may multiply or accumulate in less
    MEDIUM = "medium"  #: less still

    @property
    def rank(self) -> int:
        """3 for ``highest``, 1 for ``medium``: a session admits kernels of its own rank or above."""
        return {"highest": 3, "high": 2, "medium": 1}[self.value]


@dataclass(frozen=True)
class Rejection:
    """A candidate that was considered and not taken."""

    kernel: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True)
class Decision:
    """How calls of one op with one signature were served, and why.

    Attributes:
        op: the overload, such as ``aten::add.Tensor``.
        route: where the work went.
        kernel: who did it, such as ``reference/numpy:add``; ``None`` when no single kernel did.
        device: ``fl:0``, or ``cpu``.
        reason: why this route.
        detail: the reason in words, with the remedy where there is one.
        rejected: every candidate considered before, each with its reason.
        dtypes: dtypes of the tensor arguments, in order.
        shapes: shapes of the tensor arguments, in order.
        calls: how often.
        seconds: time spent inside, in seconds; ``None`` when the session does not time.
        bytes_to_host: bytes copied from the device for these calls.
        bytes_to_device: bytes copied to the device for these calls.
        call_site: ``file:line`` of the first call outside PyTorch and flroute.
        module: path of the module that made the first call, ``encoder.layer.3.attention``; the class's name for the
            outermost module, ``None`` outside of modules. In a session with ``modules=True`` a backward pass runs in the
            modules that made its graph; in one that does not ask for modules it is outside of them.
        phase: of the first call. In a session with ``modules=True`` it is, like the module, that of every call.
        rest: whether this adds up the calls of all signatures of the op beyond those kept apart; dtypes and shapes are
            empty then, and detail and rejections those of the first of them.
    """

    op: str
    route: Route
    kernel: str | None
    device: str
    reason: Reason
    detail: str = ""
    rejected: tuple[Rejection, ...] = ()
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    calls: int = 0
    seconds: float | None = None
    bytes_to_host: int = 0
    bytes_to_device: int = 0
    call_site: str | None = None
    module: str | None = None
    phase: Phase = Phase.FORWARD
    rest: bool = False

    def _repr_html_(self) -> str:
        """For a notebook: what is known of it, a line each."""
        signature = [f"{dtype} {list(shape)}" for dtype, shape in zip(self.dtypes, self.shapes, strict=False)]
        facts = {
            "op": self.op,
            "route": f"{self.route}, by {self.kernel}" if self.kernel else self.route,
            "device": self.device,
            "reason": f"{self.reason}: {self.detail}" if self.detail else self.reason,
            "rejected": "\n".join(f"{r.kernel}: {r.reason}: {r.detail}".rstrip(": ") for r in self.rejected),
            "tensors": "all signatures beyond those kept apart" if self.rest else ", ".join(signature),
            "calls": f"{self.calls:,}",
            "time": shown_seconds(self.seconds),
            "bytes to the host": self.bytes_to_host and f"{self.bytes_to_host:,}",
            "bytes to the device": self.bytes_to_device and f"{self.bytes_to_device:,}",
            "first from": self.call_site,
            "module": self.module,
            "phase": self.phase,
        }
        return html_part(html_facts(facts))


@dataclass(frozen=True)
class Redirected:
    """Calls from one line that named cuda and reached the device instead.

    Attributes:
        name: what was called, ``torch.cuda.synchronize`` or ``Tensor.to``.
        site: ``file:line`` outside PyTorch and flroute.
        calls: how often.
    """

    name: str
    site: str
    calls: int
