"""The only file that touches private PyTorch names.

Each name is looked up here, once, with the PyTorch release that is known to have it. A PyTorch that lacks
one is refused at import with an error that names it, never with an AttributeError later.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.backend_registration as _registration
from packaging.version import Version
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode  # noqa: PLC0414 -- re-exported

from flroute.errors import CompatibilityError

SUPPORTED = ("2.11", "2.13", "2.14", "2.15")
OLDEST = Version("2.11")

TORCH_VERSION = Version(torch.__version__)

ATTENTION_TAKES_MASK_AND_CAUSAL = TORCH_VERSION.release[:2] < (2, 14)
"""Whether the host's fused attention takes both; by version, as trying it would depend on the user's ``sdpa_kernel``."""

PRIVATE_NAMES: dict[str, str] = {
    "torch._C._from_dlpack": "a tensor from a DLPack capsule",
    "torch._C._construct_storage_from_data_pointer": "a host storage over an address",
    "torch._C._dispatch_has_kernel_for_dispatch_key": "which ops PyTorch implements for a key",
    "torch._C._dispatch_get_all_op_names": "every op PyTorch has",
    "torch._C._len_torch_dispatch_stack": "whether other dispatch modes are active",
    "torch._C._pop_torch_dispatch_stack": "sessions closed in any order",
    "torch._C._push_on_torch_dispatch_stack": "sessions closed in any order",
    "torch._C._len_torch_function_stack": "sessions closed in any order",
    "torch._C._pop_torch_function_stack": "sessions closed in any order",
    "torch._C._push_on_torch_function_stack": "sessions closed in any order",
    "torch._C._get_privateuse1_backend_name": "who owns PrivateUse1",
    "torch._C._dispatch_tls_local_include_set": "composites inside a dispatch mode",
    "torch._C._storage_Use_Count": "whether a storage is shared",
    "torch._C.DisableTorchFunction": "a tensor's own memory, whatever its subclass says",
    "torch._C._swap_tensor_impl": "moving a Parameter without replacing it",
    "torch._C._ExcludeDispatchKeyGuard": "host work without the caller's autocast",
    "torch._C._ForceDispatchKeyGuard": "composites inside a dispatch mode",
    "torch._C._dispatch_tls_local_exclude_set": "composites inside a dispatch mode",
    "torch._neg_view": "the lazy negative bit",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": "a device from Python",
    "torch._C._acc.PrivateUse1Hooks": "a device from Python",
    "torch._C._acc.DeviceGuard": "a device from Python",
    "torch.autograd.graph._engine_run_backward": "the entry to the autograd engine",
    "torch.autograd._engine_run_backward": "the same name where torch.autograd keeps it",
    "torch._tensor_str._tensor_str": "how the elements of a tensor are printed",
    "torch.nn.Module._apply": "every conversion of a module",
    "torch.nn.Module._call_impl": "the module that makes a call",
    "torch._C._current_graph_task_id": "whether the autograd engine makes a call",
    "torch._C._current_autograd_node": "the node whose backward makes a call",
    "torch.autograd._get_sequence_nr": "the module that a node was made in",
    "torch.utils._device.DeviceContext": "the default device",
    "torch.utils._device._device_constructors": "the functions that take a default device",
    "torch._ops.OpOverload.redispatch": "metadata ops on the host's own implementation",
    "torch._meta_registrations.device_hint": "the device that shape rules are asked for",
    "torch.random._seed_custom_device": "torch.manual_seed reaching the device",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "keeping Dynamo out of the router",
}


def _resolve(dotted: str) -> Any:
    found: Any = torch
    for part in dotted.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CompatibilityError(
                f"PyTorch {torch.__version__} has no {dotted} ({PRIVATE_NAMES[dotted]}), which flroute relies on. "
                f"flroute supports PyTorch {', '.join(SUPPORTED)}; install one of these."
            ) from None
    return found


def check_version(version: Version = TORCH_VERSION) -> None:
    """Refuse a PyTorch that is too old, or lacks a private name.

    Raises:
        CompatibilityError: naming the version and the supported range, or the missing name.
    """
    if version.release[:2] < OLDEST.release[:2]:
        raise CompatibilityError(
            f"flroute needs PyTorch {OLDEST} or newer, this is {version}: pip install 'torch>={OLDEST}'"
        )
    for dotted in PRIVATE_NAMES:
        _resolve(dotted)


check_version()

DispatchKey = torch._C.DispatchKey
DispatchKeySet = torch._C.DispatchKeySet
HOST_KEYS = DispatchKeySet(DispatchKey.CPU)

from_dlpack = torch._C._from_dlpack
neg_view = torch._neg_view
dispatch_stack_length = torch._C._len_torch_dispatch_stack
swap_tensor_impl = torch._C._swap_tensor_impl
all_op_names = torch._C._dispatch_get_all_op_names
MODULE_CALL = torch.nn.Module._call_impl.__code__
"""The frame of each module's call; its first local is the module."""
BACKWARD_CALL = torch.autograd.graph._engine_run_backward.__code__
"""The frame of each backward pass: what is above it runs in a node."""
next_sequence_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number that the next autograd node of this thread will have."""


def has_kernel(op_name: str, key: str) -> bool:
    """Whether PyTorch has a kernel for ``op_name`` registered at exactly this dispatch key (an alias key counts as itself)."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(op_name, key))


def in_backward() -> bool:
    """Whether the autograd engine is at work in this thread."""
    return bool(torch._C._current_graph_task_id() != -1)


def current_node() -> Any | None:
    """The autograd node whose backward runs in this thread."""
    return torch._C._current_autograd_node() if in_backward() else None


_OF_LEAVES = 2**64 - 1  # Node::sequence_nr of AccumulateGrad: they run as soon as they can


def sequence_number(node: Any) -> int | None:
    """Which of its thread's autograd nodes this is, in the order made; ``None`` for those that take up gradients of leaves."""
    number = int(node._sequence_nr())
    return None if number == _OF_LEAVES else number


def find_op(name: str) -> Any | None:
    """The overload ``aten::add.Tensor`` names (no dot: the default one), or ``None`` if this PyTorch lacks it."""
    namespace, _, rest = name.partition("::")
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), packet_name, None)
    return getattr(packet, overload or "default", None)


def overloads_of(name: str) -> list[str]:
    """Full names of all overloads of the packet ``aten::add`` names."""
    namespace, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    return [] if packet is None else [getattr(packet, o).name() for o in packet.overloads()]


class _HostShapeRules(threading.local):
    """Whether this thread asks for the host's shape rules; see ``host_shape_rules``."""

    active = False


_host_shape_rules = _HostShapeRules()
_hint_of_device = torch._meta_registrations.device_hint


def _hint_of_host(tensor: Any) -> Any:
    if _host_shape_rules.active and type(tensor) is torch.Tensor and tensor.is_meta:
        return "cpu"
    return _hint_of_device(tensor)


@contextmanager
def host_shape_rules() -> Iterator[None]:
    """A context in which PyTorch's rules for plain meta tensors are the host's.

    Where host and cuda lay out a result differently (Fourier transforms, ``linalg.svd``), the rules look at the device, and
    take a meta tensor, which says none, for one on cuda.
    """
    torch._meta_registrations.device_hint = _hint_of_host  # for other threads and tensors it answers as ever
    before, _host_shape_rules.active = _host_shape_rules.active, True
    try:
        yield
    finally:
        _host_shape_rules.active = before


_LAZY_KEYS = (DispatchKey.Conjugate, DispatchKey.Negative, DispatchKey.ZeroTensor)


def resolving_lazy_bits() -> Any:
    """A context in which PyTorch resolves lazy conj and neg views again.

    A dispatch mode runs with every key above Python excluded (``pythonFallback``, PythonFallbackKernel.cpp), these among
    them: a composite that conjugates on the way would hand its next op a view whose bit nobody sees.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY_KEYS:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def run_composite(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run PyTorch's own composite implementation of ``op``, whose parts are dispatched anew."""
    with resolving_lazy_bits():
        for key in _COMPOSITE_KEYS:
            if has_kernel(op.name(), key.name):
                return op._op_dk(key, *args, **kwargs)
    raise CompatibilityError(f"PyTorch {torch.__version__} has no composite implementation of {op.name()}")


def run_decomposition(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function of tensors in the place of an op; what it calls is dispatched anew."""
    with resolving_lazy_bits():
        return function(*args, **kwargs)


_COMPOSITE_KEYS = (
    DispatchKey.CompositeImplicitAutograd,
    DispatchKey.CompositeExplicitAutogradNonFunctional,
    DispatchKey.CompositeExplicitAutograd,
)


def boxed_redispatch(op: Any) -> Callable[..., Any]:
    """``op.redispatch`` without its Python wrapper: takes a key set, then the op's arguments."""
    return op._handle.redispatch_boxed  # type: ignore[no-any-return]


_AUTOCAST_HOST = DispatchKeySet(DispatchKey.AutocastCPU)


def without_host_autocast() -> Any:
    """A context in which ``torch.autocast("cpu")`` does not act: host work done for a device op keeps its dtypes."""
    return torch._C._ExcludeDispatchKeyGuard(_AUTOCAST_HOST)


def host_storage_at(address: int, nbytes: int) -> Any:
    """A host storage over memory that someone else owns and keeps alive."""
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), nbytes)


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """How many tensors and storages share this memory, ``storage`` itself included."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def device_owner() -> str:
    """The name PrivateUse1 carries: ``privateuseone`` while nobody claimed it."""
    return str(torch._C._get_privateuse1_backend_name())


def register_device(name: str, module: Any) -> None:
    """Give PrivateUse1 the name ``name`` with ``module`` as ``torch.<name>``.

    Raises:
        CompatibilityError: another package already owns PrivateUse1 in this process.
    """
    owner = device_owner()
    if owner != "privateuseone":
        raise CompatibilityError(
            f"PyTorch has one slot for out-of-tree devices per process (PrivateUse1) and {owner!r} already holds it, "
            f"so flroute cannot register {name!r}. Run flroute in a process that does not load {owner!r}: "
            f"TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops PyTorch from loading device packages by itself."
        )
    _registration._setup_privateuseone_for_python_backend(name, backend_module=module)


def seeding_everything(code: Any) -> bool:
    """Whether ``code`` is the code object through which ``torch.manual_seed`` seeds every device."""
    return code is torch.random._seed_custom_device.__code__


@contextmanager
def single_threaded_backward(_roots: Any = ()) -> Iterator[None]:
    """Backward passes started inside run in the calling thread."""
    with torch.autograd.set_multithreading_enabled(False):
        yield


# The C++ device guard (c10/core/impl/DeviceGuardImplInterface.h) -------------------------------------------------

_PRIVATEUSE1 = 20  # c10::DeviceType::PrivateUse1
_REGISTRY_SYMBOL = "_ZN3c104impl26device_guard_impl_registryE"
_LIBC10 = Path(torch.__file__).parent / "lib" / "libc10.so"
_VTABLE_SLOTS = 40
_SLOT_GET_DEVICE, _SLOT_SET_DEVICE, _SLOT_UNCHECKED_SET_DEVICE, _SLOT_EXCHANGE_STREAM = 2, 3, 4, 9


def _address(value: int | None) -> int:
    if not value:
        raise CompatibilityError("PyTorch's device guard registry holds no guard where one was registered")
    return value


class DeviceGuardPatch:
    """Replaces four slots of the device guard's C++ vtable.

    PyTorch's Python device guard answers ``setDevice``, ``uncheckedSetDevice`` and ``exchangeStream`` by calling into
    Python, inside noexcept destructors: with a Python error pending (a kernel that raises in backward under a
    TorchDispatchMode) that ends the process. The host guard's own C++ no-ops take their place, and ``getDevice``
    answers with flroute's current device, so that a bare ``"fl"`` means the same everywhere.
    """

    def __init__(self, current_device: Callable[[], int]) -> None:
        library = ctypes.CDLL(str(_LIBC10))
        registry = (ctypes.c_void_p * (_PRIVATEUSE1 + 1)).in_dll(library, _REGISTRY_SYMBOL)
        guard, host_guard = (_address(registry[i]) for i in (_PRIVATEUSE1, 0))
        self._object = ctypes.c_void_p.from_address(guard)
        header = 2 * ctypes.sizeof(ctypes.c_void_p)  # offset-to-top and type_info precede a vtable
        table = ctypes.c_void_p * (_VTABLE_SLOTS + 2)
        self._original = _address(self._object.value)
        host = table.from_address(_address(ctypes.c_void_p.from_address(host_guard).value) - header)
        self._table = table(*table.from_address(self._original - header))
        for slot in (_SLOT_SET_DEVICE, _SLOT_UNCHECKED_SET_DEVICE, _SLOT_EXCHANGE_STREAM):
            self._table[2 + slot] = host[2 + slot]
        prototype = ctypes.CFUNCTYPE(ctypes.c_uint16, ctypes.c_void_p)  # c10::Device: int8 type, int8 index
        self._get_device = prototype(lambda _self: _PRIVATEUSE1 | current_device() << 8)
        self._table[2 + _SLOT_GET_DEVICE] = ctypes.cast(self._get_device, ctypes.c_void_p).value
        self._patched = ctypes.addressof(self._table) + header

    def install(self) -> None:
        """Put the patched vtable in place."""
        self._object.value = self._patched

    def remove(self) -> None:
        """Put PyTorch's own vtable back."""
        self._object.value = self._original


def guard_can_be_patched() -> bool:
    """Whether the vtable layout above is the one of this PyTorch: supported releases, Itanium C++ ABI."""
    minor = f"{TORCH_VERSION.major}.{TORCH_VERSION.minor}"
    return os.name == "posix" and minor in SUPPORTED and _LIBC10.exists()


class DefaultDevice(DeviceContext):
    """``with torch.device(...)``, but functions that make no tensor pass through it at two thirds of its cost.

    Like that one, and unlike its base class, it goes on top of the modes there are. It may be left in any order.
    """

    def __enter__(self) -> None:
        torch._C._push_on_torch_function_stack(self)

    def __exit__(self, *exc: object) -> None:
        length, pop = torch._C._len_torch_function_stack, torch._C._pop_torch_function_stack
        for other in reversed(_pop_down_to(self, length, pop)):
            torch._C._push_on_torch_function_stack(other)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _device_constructors():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        return func(*args, **kwargs) if kwargs else func(*args)


# Small conveniences over private names -----------------------------------------------------------------------------


def schema_of(op: Any) -> Any:
    """The schema of an overload: its name, arguments and returns."""
    return op._schema


def storage_key(storage: torch.UntypedStorage) -> int:
    """What two Python objects for one storage have in common: its address in C++."""
    return int(storage._cdata)


def is_overload(func: Any) -> bool:
    """Whether ``func`` is an ``OpOverload`` (not a higher-order operator)."""
    return isinstance(func, torch._ops.OpOverload)


def increment_versions(tensors: Any, result: Any) -> Any:
    """Bump the version counters of a list of tensors that were written; returns ``result``."""
    counted = [t for t in tensors if not t.is_inference()]
    if counted:
        torch.autograd.graph.increment_version(counted)
    return result


def outside_dispatch_modes() -> Any:
    """A context without any dispatch mode."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def _pop_down_to(mode: Any, length: Callable[[], int], pop: Callable[[], Any]) -> list[Any]:
    above = []
    while length() and (top := pop()) is not mode:
        above.append(top)
    return above


@contextmanager
def on_top_of_dispatch_stack(mode: TorchDispatchMode) -> Iterator[None]:
    """Inside, no other dispatch mode is above ``mode``: leaving a mode takes the topmost one off the stack."""
    push = torch._C._push_on_torch_dispatch_stack
    above = _pop_down_to(mode, dispatch_stack_length, lambda: torch._C._pop_torch_dispatch_stack(None))
    push(mode)
    try:
        yield
    finally:
        for other in reversed(above):
            push(other)


def skip_in_dynamo(function: Callable[..., Any]) -> None:
    """Keep Dynamo out of ``function`` and of all it calls, without importing Dynamo and without a wrapper per call."""
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
    frames.set_code_exec_strategy(function.__code__, skip)


# Modules, storages and the autograd engine -------------------------------------------------------------------------


def replace_module_apply(make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Put ``make(original)`` in the place of ``torch.nn.Module._apply``, through which every conversion goes."""
    torch.nn.Module._apply = make(torch.nn.Module._apply)  # type: ignore[method-assign]


def replaceable_tensors(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A module's own parameters and buffers, by name; ``None`` if they live in C++ (TorchScript, C++ modules)."""
    parameters, buffers = module._parameters, module._buffers
    return (parameters, buffers) if isinstance(parameters, dict) else None


def plain_alias(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as an ordinary tensor, whatever the subclass has to say about it."""
    with torch._C.DisableTorchFunction():
        return tensor.data


def carries_more_than_its_impl(tensor: torch.Tensor) -> bool:
    """Whether a tensor's Python half belongs to its value: wrapper subclasses and fake tensors."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    return isinstance(tensor, FakeTensor) or is_traceable_wrapper_subclass(tensor)


def exchange(parameter: torch.Tensor, other: torch.Tensor) -> None:
    """Exchange what two leaf tensors are, keeping both Python objects; the hooks stay with ``parameter``.

    Doing it twice undoes it. ``.grad`` and ``requires_grad`` travel with the value. Hooks are kept by the Python object
    (THPVariable) and registered with the C++ tensor (AutogradMeta): the setters of these two attributes do both.
    ``torch.utils.swap_tensors`` does less: it refuses weak references and living graphs, and loses the hooks.
    """
    with torch._C.DisableTorchFunction():
        hooks, late_hooks = parameter._backward_hooks, parameter._post_accumulate_grad_hooks
        whole = carries_more_than_its_impl(parameter) or carries_more_than_its_impl(other)
        swap_tensor_impl(parameter, other)
        if whole:
            _exchange_python_halves(parameter, other)
        other._backward_hooks = None
        other._post_accumulate_grad_hooks = {}  # None would leave them registered in C++
        parameter._backward_hooks, parameter._post_accumulate_grad_hooks = hooks, late_hooks


def _exchange_python_halves(one: torch.Tensor, other: torch.Tensor) -> None:
    slots = [
        name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())
    ]  # DTensor has some
    for name in ("__class__", "__dict__", *slots):
        ours, theirs = getattr(one, name, None), getattr(other, name, None)
        setattr(one, name, theirs)
        setattr(other, name, ours)


def before_printing(prepare: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Print ``prepare(tensor)`` wherever the elements of a tensor are printed."""
    render = torch._tensor_str._tensor_str

    @functools.wraps(render)
    def render_prepared(self: torch.Tensor, indent: int) -> Any:
        return render(prepare(self), indent)  # type: ignore[no-untyped-call]

    torch._tensor_str._tensor_str = render_prepared


def wrap_backward(around: Callable[[Any], Any]) -> None:
    """Run every backward pass inside ``around(roots)``, a context manager; a root is a tensor or a ``GradientEdge``.

    ``torch.autograd`` imports the name from ``torch.autograd.graph``: both are replaced.
    """
    run = torch.autograd.graph._engine_run_backward

    @functools.wraps(run)
    def run_inside(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        with around(t_outputs):
            return run(t_outputs, *args, **kwargs)

    torch.autograd.graph._engine_run_backward = run_inside
    torch.autograd._engine_run_backward = run_inside  # type: ignore[attr-defined]


def choose_as_on_host(device_type: str) -> None:
    """What ``torch.nn.LinearCrossEntropyOptions`` (PyTorch 2.13) leaves to PyTorch is chosen as on the host."""
    options: Any = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if (adjust := getattr(options, "_adjust", None)) is not None:

        @functools.wraps(adjust)
        def as_on_host(self: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            known = torch.device("cpu") if device is not None and device.type == device_type else device
            return adjust(self, *args, device=known, **kwargs)

        options._adjust = as_on_host


# Tensors without data ----------------------------------------------------------------------------------------------


def fake_tensors() -> Any:
    """A mode in which tensors have shape, dtype, strides and device, and no data."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def fake_like(tensor: torch.Tensor, mode: Any, device: torch.device) -> torch.Tensor:
    """A fake tensor with the metadata of ``tensor``, on another device."""
    with mode:
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.requires_grad_(tensor.requires_grad)


def fake_refusals() -> tuple[type[Exception], ...]:
    """What fake tensors raise where a number, or a shape, depends on data."""
    from torch._subclasses import fake_tensor

    return (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)


def map_tensors(function: Callable[[torch.Tensor], Any], value: Any) -> Any:
    """``value`` with each tensor in it, however deep, replaced by what ``function`` makes of it."""
    from torch.utils._pytree import tree_map_only

    return tree_map_only(torch.Tensor, function, value)


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """PyTorch's own way to compute ``op`` by other ops, which its compiler uses; most ops have none."""
    from torch._decomp import decomposition_table

    return decomposition_table.get(op)


def implementation_in_aten(op: Any) -> Callable[..., Any] | None:
    """What computes one of the ops (``prims::``) that PyTorch's decompositions are written in; ``None`` if it is none of them."""
    return getattr(op, "impl_aten", None)


def flops_of(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Floating-point operations of a call: PyTorch's formula where it has one, else one per element of the results."""
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(op._overloadpacket)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    results = result if isinstance(result, tuple | list) else (result,)
    return sum(r.numel() for r in results if isinstance(r, torch.Tensor))
