"""The private names of PyTorch that flroute relies on, checked at import.

A PyTorch that lacks one is refused with an error that names it, never with an AttributeError later.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.multiprocessing.reductions
import torch.utils._device  # modules that ``import torch`` leaves out
import torch.utils.backend_registration
from packaging.version import Version

from flroute.errors import CompatibilityError

SUPPORTED = ("2.11", "2.13", "2.14", "2.15")
"""Releases on which tests were run: docs/pytorch_releases.md says which. Others are only checked at import."""
OLDEST = Version("2.11")
TORCH_VERSION = Version(torch.__version__)
ATTENTION_TAKES_MASK_AND_CAUSAL = TORCH_VERSION.release[:2] < (2, 14)
"""Whether the host's fused attention takes both; by version, as trying it would depend on the user's ``sdpa_kernel``."""
PRIVATE_NAMES: dict[str, str] = {
    "torch._C._functorch.is_functorch_wrapped_tensor": "casts that autocast may keep",
    "torch.Tensor._is_view": "casts that autocast may keep",
    "torch.Tensor._version": "whether a weight was written since autocast cast it",
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
    "torch._C._get_function_stack_at": "whether the alias of cuda is in force in a backward pass",
    "torch._C._get_privateuse1_backend_name": "who owns PrivateUse1",
    "torch._C._dispatch_tls_local_include_set": "composites inside a dispatch mode",
    "torch._C._storage_Use_Count": "whether a storage is shared",
    "torch._C.DisableTorchFunction": "a tensor's own memory, whatever its subclass says",
    "torch._C._swap_tensor_impl": "moving a Parameter without replacing it",
    "torch._C._ExcludeDispatchKeyGuard": "host work without the caller's autocast",
    "torch._C._ForceDispatchKeyGuard": "composites inside a dispatch mode",
    "torch._C._dispatch_tls_local_exclude_set": "composites inside a dispatch mode",
    "torch._C._DisableTorchDispatch": "host work that no dispatch mode sees",
    "torch.Tensor._make_wrapper_subclass": "tensors that carry two values",
    "torch._functionalize_unsafe_set": "tensors that carry two values",
    "torch.multiprocessing.reductions.StorageWeakRef": "what belongs to a storage, for as long as it lives",
    "torch._neg_view": "the lazy negative bit",
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend": "a device from Python",
    "torch._C._acc.PrivateUse1Hooks": "a device from Python",
    "torch._C._acc.DeviceGuard": "a device from Python",
    "torch.serialization._load": "devices in pickles, under the alias of cuda",
    "torch.serialization._legacy_load": "devices in pickles, under the alias of cuda",
    "torch._weights_only_unpickler.Unpickler": "devices in pickles, under the alias of cuda",
    "torch.autograd.graph._engine_run_backward": "the entry to the autograd engine",
    "torch.autograd._engine_run_backward": "the same name where torch.autograd keeps it",
    "torch._tensor_str._tensor_str": "how the elements of a tensor are printed",
    "torch.nn.Module._apply": "every conversion of a module",
    "torch.nn.Module._call_impl": "the module that makes a call",
    "torch._C._current_graph_task_id": "whether the autograd engine makes a call",
    "torch._C._current_autograd_node": "the node whose backward makes a call",
    "torch.autograd._get_sequence_nr": "the module that a node was made in",
    "torch.autograd.profiler.profile._prepare_trace": "kernels of the device in torch.profiler",
    "torch.autograd.profiler.profile._start_trace": "kernels of the device in torch.profiler",
    "torch.autograd.profiler.profile._parse_kineto_results": "kernels of the device in torch.profiler",
    "torch.autograd.profiler_util.FunctionEvent": "kernels of the device in torch.profiler",
    "torch.utils._device.DeviceContext": "the default device",
    "torch.utils._device._device_constructors": "the functions that take a default device",
    "torch._ops.OpOverload.redispatch": "metadata ops on the host's own implementation",
    "torch._meta_registrations.device_hint": "the device that shape rules are asked for",
    "torch.random._seed_custom_device": "torch.manual_seed reaching the device",
    "torch._GLOBAL_DEVICE_CONTEXT": "the default device a script chose, undone after a session",
    "torch.backends.__allow_nonbracketed_mutation": "flags of torch.backends set back after a session",
    "torch._TorchCompileInductorWrapper.__call__": "graphs on the device, which Inductor has no code for",
    "torch._C._dynamo.eval_frame.set_code_exec_strategy": "keeping Dynamo out of the router",
}

COLLECTIVE_NAMES: dict[str, str] = {
    "torch._C._distributed_c10d.PythonCallbackWork": "collectives that are waited for in Python",
    "torch._C._distributed_c10d.ProcessGroup.unbox": "the group of a collective",
    "torch._C._distributed_c10d.ProcessGroup._get_backend": "the transport of a collective",
    "torch._C._distributed_c10d.Backend._allgather_base": "gathering into one tensor",
    "torch._C._distributed_c10d.Work._source_rank": "receiving from any rank",
    "torch.distributed.distributed_c10d._tensor_to_object": "devices in pickles, under the alias of cuda",
}
"""Needed where this PyTorch was built with ``torch.distributed``."""

DYNAMO_NAMES: dict[str, str] = {
    "torch._dynamo.variables.VariableTracker.build": "what traced code hears",
    "torch._dynamo.variables.TensorVariable.method_attr_device": "devices in traced code, under the alias of cuda",
    "torch._dynamo.variables.TensorVariable.method_attr_is_cuda": "devices in traced code, under the alias of cuda",
    "torch._dynamo.variables.TensorVariable.call_method": "devices in traced code, under the alias of cuda",
    "torch._dynamo.variables.UserDefinedClassVariable.call_function": "torch.device(0) in traced code",
    "torch._dynamo.variables.UserFunctionVariable.call_function": "torch.cuda.is_available() and its kin in traced code",
    "torch._dynamo.variables.SkipFunctionVariable.call_function": "torch.cuda.is_available() and its kin in traced code",
    "torch._dynamo.variables.TorchInGraphFunctionVariable.call_function": "functions that a user allows in graphs",
    "torch._dynamo.variables.BuiltinVariable.call_isinstance": "torch.cuda.FloatTensor in traced code",
    "torch._dynamo.variables.BuiltinVariable.call_function_handler_cache": "torch.cuda.FloatTensor in traced code",
    "torch._dynamo.variables.torch_function.TorchFunctionModeVariable.call_torch_function": "the alias of cuda among modes",
    "torch._dynamo.variables.StreamContextVariable.enter": "streams that stand for cuda's in traced code",
    "torch._dynamo.variables.torch_function.SymbolicTorchFunctionState.in_torch_function_mode": "the alias of cuda among modes",
    "torch._dynamo.output_graph.OutputGraph.__init__": "code compiled for one meaning of cuda is not run under another",
    "torch._dynamo.output_graph.OutputGraph.current_tx": "which line is traced",
    "torch._dynamo.output_graph.SubgraphTracer.create_proxy": "devices in graphs, under the alias of cuda",
    "torch._dynamo.source.ImportSource": "code compiled for one meaning of cuda is not run under another",
    "torch._dynamo.source.AttrSource": "code compiled for one meaning of cuda is not run under another",
    "torch._dynamo.source.CallFunctionNoArgsSource": "code compiled for one meaning of cuda is not run under another",
    "torch._dynamo.guards.GuardBuilder.EQUALS_MATCH": "code compiled for one meaning of cuda is not run under another",
    "torch._guards.tracing": "code compiled for one meaning of cuda is not run under another",
    "torch._dynamo.exc.unimplemented": "leaving a call to Python",
}
"""Needed once this process has imported ``torch._dynamo``, and code is compiled under the alias of cuda."""


def _all_names() -> dict[str, str]:
    return {**PRIVATE_NAMES, **(COLLECTIVE_NAMES if torch.distributed.is_available() else {})}


def dynamo_names_that_lack() -> list[str]:
    """Those of ``DYNAMO_NAMES`` that this PyTorch does not have; imports Dynamo."""
    return [dotted for dotted in DYNAMO_NAMES if not _has(dotted)]


def _has(dotted: str) -> bool:
    try:
        _resolve(dotted)
    except CompatibilityError:
        return False
    return True


def _resolve(dotted: str) -> Any:
    found: Any = torch
    for part in dotted.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:
            why = {**_all_names(), **DYNAMO_NAMES}[dotted]
            raise CompatibilityError(
                f"PyTorch {torch.__version__} has no {dotted} ({why}), which flroute relies on. "
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
    for dotted in _all_names():
        _resolve(dotted)


check_version()
