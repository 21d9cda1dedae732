"""The only package that touches private PyTorch names: one file for each mechanism, imported from here.

Each name is looked up once, with the PyTorch releases that are known to have it (``names.py``).
"""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode

from flroute.torch_compat import names  # noqa: F401 -- checked before any of them is looked up

# isort: split
from flroute.torch_compat.autograd import (
    BACKWARD_CALL,
    current_node,
    in_backward,
    increment_versions,
    next_sequence_number,
    sequence_number,
    single_threaded_backward,
    wrap_backward,
)
from flroute.torch_compat.device_slot import (
    PRIVATEUSE1,
    DeviceGuardPatch,
    counts_offsets,
    device_owner,
    guard_can_be_patched,
    register_device,
    seeding_everything,
)
from flroute.torch_compat.modes import (
    DefaultDevice,
    dispatch_stack_length,
    on_top_of_dispatch_stack,
    outside_dispatch_modes,
    skip_in_dynamo,
)
from flroute.torch_compat.modules import (
    MODULE_CALL,
    carries_more_than_its_impl,
    choose_as_on_host,
    exchange,
    replace_module_apply,
    replaceable_tensors,
    swap_tensor_impl,
)
from flroute.torch_compat.names import (
    ATTENTION_TAKES_MASK_AND_CAUSAL,
    OLDEST,
    PRIVATE_NAMES,
    SUPPORTED,
    TORCH_VERSION,
    check_version,
)
from flroute.torch_compat.ops import (
    HOST_KEYS,
    DispatchKey,
    DispatchKeySet,
    all_op_names,
    boxed_redispatch,
    decomposition_of,
    find_op,
    flops_of,
    has_kernel,
    implementation_in_aten,
    is_overload,
    overloads_of,
    resolving_lazy_bits,
    run_composite,
    run_decomposition,
    schema_of,
    without_host_autocast,
)
from flroute.torch_compat.shape_rules import (
    fake_like,
    fake_refusals,
    fake_tensors,
    host_shape_rules,
    map_tensors,
)
from flroute.torch_compat.storages import (
    before_printing,
    from_dlpack,
    host_storage_at,
    neg_view,
    plain_alias,
    storage_key,
    storage_use_count,
)
from flroute.torch_compat.streams import (
    PlainEvent,
    PlainStream,
    accelerator_functions,
    answer_for_accelerator,
    replace_streams_and_events,
)

__all__ = [
    "ATTENTION_TAKES_MASK_AND_CAUSAL",
    "BACKWARD_CALL",
    "HOST_KEYS",
    "MODULE_CALL",
    "OLDEST",
    "PRIVATEUSE1",
    "PRIVATE_NAMES",
    "SUPPORTED",
    "TORCH_VERSION",
    "DefaultDevice",
    "DeviceGuardPatch",
    "DispatchKey",
    "DispatchKeySet",
    "PlainEvent",
    "PlainStream",
    "TorchDispatchMode",
    "accelerator_functions",
    "all_op_names",
    "answer_for_accelerator",
    "before_printing",
    "boxed_redispatch",
    "carries_more_than_its_impl",
    "check_version",
    "choose_as_on_host",
    "counts_offsets",
    "current_node",
    "decomposition_of",
    "device_owner",
    "dispatch_stack_length",
    "exchange",
    "fake_like",
    "fake_refusals",
    "fake_tensors",
    "find_op",
    "flops_of",
    "from_dlpack",
    "guard_can_be_patched",
    "has_kernel",
    "host_shape_rules",
    "host_storage_at",
    "implementation_in_aten",
    "in_backward",
    "increment_versions",
    "is_overload",
    "map_tensors",
    "neg_view",
    "next_sequence_number",
    "on_top_of_dispatch_stack",
    "outside_dispatch_modes",
    "overloads_of",
    "plain_alias",
    "register_device",
    "replace_module_apply",
    "replace_streams_and_events",
    "replaceable_tensors",
    "resolving_lazy_bits",
    "run_composite",
    "run_decomposition",
    "schema_of",
    "seeding_everything",
    "sequence_number",
    "single_threaded_backward",
    "skip_in_dynamo",
    "storage_key",
    "storage_use_count",
    "swap_tensor_impl",
    "without_host_autocast",
    "wrap_backward",
]
