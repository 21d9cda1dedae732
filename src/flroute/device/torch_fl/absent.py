"""What of ``torch.cuda`` is not in ``torch.fl``, and why; and what is there in the nearest form."""

from __future__ import annotations

from fnmatch import fnmatchcase

_RUNTIME = "it is part of the CUDA runtime and its libraries; ask the vendor's own driver package"
_NO_SENSORS = "flroute asks a vendor for memory and kernels, not for sensors; ask the vendor's own tools"
_NO_GRAPHS = "kernels are Python functions, which cannot be captured in a graph; use torch.compile"
_NO_PINNED = "the host keeps no pinned memory for the device; copies from ordinary memory are as good"
_OWN_ALLOCATOR = (
    "what hands out memory is the vendor's flroute.vendor.Memory; FLROUTE_ALLOC_CONF sets its pools"
)
_TYPES = "such types are older than torch.dtype; say dtype= and device='fl'"
_HANDLES = "streams are flroute.vendor.Streams of the vendor's; a foreign handle is nothing it knows. Make torch.fl.Stream()"
_SYNC = (
    "nothing tells a call that waits from one that does not; session.decisions counts every copy to the host"
)
_TUNING = "it tunes CUDA's libraries; order kernels with flroute.enable(order=...)"
_COLLECTIVES = "it works on CUDA's own communicators; use torch.distributed, or tensor.to() for each device"

REFUSED: dict[str, str] = {
    "*Tensor": _TYPES,
    "*Storage": _TYPES,
    "CUDAGraph": _NO_GRAPHS,
    "graph": _NO_GRAPHS,
    "graph_pool_handle": _NO_GRAPHS,
    "make_graphed_callables": _NO_GRAPHS,
    "graphs": _NO_GRAPHS,
    "graphs.*": _NO_GRAPHS,
    "export_dot": _NO_GRAPHS,
    "export_graph_data": _NO_GRAPHS,
    "graph_annotations": _NO_GRAPHS,
    "CudaError": _RUNTIME + ". Errors are flroute.FlrouteError and torch.OutOfMemoryError",
    "DeferredCudaCallError": "the device needs no initialisation that could be deferred",
    "cudaStatus": _RUNTIME,
    "cudart": _RUNTIME,
    "check_error": _RUNTIME,
    "current_blas_handle": _RUNTIME,
    "current_solver_handle": _RUNTIME,
    "get_gencode_flags": "kernels are Python functions, no compiler of CUDA's made them",
    "GreenContext": _RUNTIME,
    "green_contexts": _RUNTIME,
    "green_contexts.*": _RUNTIME,
    "gds": _RUNTIME,
    "gds.*": _RUNTIME,
    "jiterator": "it compiles CUDA source; register a kernel with flroute.vendor.kernel",
    "jiterator.*": "it compiles CUDA source; register a kernel with flroute.vendor.kernel",
    "nvtx": "it marks ranges for NVIDIA's profilers; use torch.profiler.record_function",
    "nvtx.*": "it marks ranges for NVIDIA's profilers; use torch.profiler.record_function",
    "profiler": "it drives NVIDIA's profilers; use torch.profiler, or session.report()",
    "profiler.*": "it drives NVIDIA's profilers; use torch.profiler, or session.report()",
    "tunable": _TUNING,
    "tunable.*": _TUNING,
    "nccl": _COLLECTIVES,
    "nccl.*": _COLLECTIVES,
    "comm": _COLLECTIVES,
    "comm.*": _COLLECTIVES,
    "sparse": "sparse tensors live on the host",
    "clock_rate": _NO_SENSORS,
    "power_draw": _NO_SENSORS,
    "temperature": _NO_SENSORS,
    "utilization": _NO_SENSORS,
    "memory_usage": _NO_SENSORS + ". torch.fl.memory_reserved() says what this process has",
    "list_gpu_processes": _NO_SENSORS,
    "host_memory_stats*": _NO_PINNED,
    "reset_*_host_memory_stats": _NO_PINNED,
    "CUDAPluggableAllocator": _OWN_ALLOCATOR,
    "change_current_allocator": _OWN_ALLOCATOR,
    "MemPool": _OWN_ALLOCATOR,
    "use_mem_pool": _OWN_ALLOCATOR,
    "caching_allocator_*": "take memory as a tensor: torch.empty(nbytes, dtype=torch.uint8, device='fl')",
    "ExternalStream": _HANDLES,
    "get_stream_from_external": _HANDLES,
    "get_sync_debug_mode": _SYNC,
    "set_sync_debug_mode": _SYNC,
    "default_generators": (
        "PyTorch makes a torch.Generator of its own devices only. Pass torch.Generator(), the host's: the device draws from it; "
        "torch.fl.get_rng_state(device) is a device's own state"
    ),
    "amp.amp_definitely_not_available": "it asks whether CUDA is there; torch.fl.is_available() asks for the device",
}
"""By cuda's name, dotted in a submodule; ``*`` stands for anything. A name of ``memory`` or ``streams`` is that without it."""

NEAREST: dict[str, str] = {
    "Event": "no `external` and no `interprocess`: events belong to one process",
    "device_memory_used": "what this process has reserved; flroute is not told of others",
    "get_allocator_backend": "`pool` or `vendor`",
    "get_arch_list": "always empty",
    "get_device_properties": "name, total_memory, major, minor, multi_processor_count and vendor",
    "get_rng_state": "a device that draws from the host's stream says so in its state",
    "has_magma": "always false",
    "initial_seed": "the host's seed until `manual_seed` gives the device its own",
    "ipc_collect": "does nothing: memory is never shared between processes",
    "is_bf16_supported": "true with emulation: the host computes what the vendor does not",
    "is_current_stream_capturing": "always false",
    "is_tf32_supported": "always false",
    "manual_seed": "until it is called, a device draws from the host's stream of numbers",
    "max_memory_reserved": "of the pool; small blocks beside it are not counted",
    "mem_get_info": "free is what this process has not reserved",
    "memory_snapshot": "segments and blocks of pools; no traces",
    "memory_stats": "the keys that mean something, and `pool.requests`, `pool.new_segments`",
    "memory_summary": "the same numbers as `memory_stats`",
    "set_per_process_memory_fraction": "of the pool; an error where the vendor has none",
    "amp.GradScaler": "a subclass of `torch.amp.GradScaler`",
    "amp.autocast": "a subclass of `torch.autocast`",
}
"""What differs from cuda's in a name that is there."""


def plain_name(name: str) -> str:
    """``memory.empty_cache`` is found as ``empty_cache``."""
    parent, _, rest = name.partition(".")
    return rest if rest and parent in ("memory", "streams", "random") else name


def why_absent(name: str) -> str | None:
    """The reason why a name of ``torch.cuda`` is not there; ``None`` if nothing is known of it."""
    name = plain_name(name)
    return next((reason for pattern, reason in REFUSED.items() if fnmatchcase(name, pattern)), None)
