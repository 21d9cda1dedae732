"""Profilers under the alias: PyTorch's own sees the device as cuda, what starts and marks NVIDIA's is accepted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity

from flroute.cuda_alias.alias import current
from flroute.cuda_alias.callers import asker
from flroute.cuda_alias.ordinals import ALIAS
from flroute.cuda_alias.replacements import answered, refused
from flroute.device.table import DEVICE_TYPE
from flroute.device.torch_fl.absent import why_absent

NO_EFFECT = "it is for NVIDIA's profilers, which see nothing here; use torch.profiler"
NO_HISTORY = (
    "PyTorch keeps a history of its own allocator only; torch.cuda.memory_summary() says what the device has"
)


def profile(original: Any) -> Any:
    """``torch.profiler.profile.__init__``; without activities it is of everything there is."""
    cuda, ours = ProfilerActivity.CUDA, ProfilerActivity.PrivateUse1

    @functools.wraps(original)
    def init(self: Any, *, activities: Any = None, use_cuda: bool | None = None, **kwargs: Any) -> None:
        asked = [*(activities or ())]
        if use_cuda or cuda in asked or activities is None:
            current().uses.add("torch.profiler.profile", asker(1))
            kept = [activity for activity in asked if activity is not cuda]
            activities = [*(kept or [ProfilerActivity.CPU]), ours]
        original(self, activities=activities, **kwargs)

    return init


def old_profile(original: Any) -> Any:
    """``torch.autograd.profiler.profile.__init__``."""

    @functools.wraps(original)
    def init(
        self: Any, *args: Any, use_cuda: bool = False, use_device: str | None = None, **kwargs: Any
    ) -> None:
        if use_cuda or use_device == ALIAS:
            current().uses.add("torch.autograd.profiler.profile", asker(1))
            use_device = DEVICE_TYPE
        original(self, *args, use_device=use_device, **kwargs)

    return init


supported_activities = answered(
    "torch.profiler.supported_activities", lambda: {ProfilerActivity.CPU, ProfilerActivity.CUDA}
)
"""``torch.profiler.supported_activities``."""


def emit_nvtx(original: Any) -> Any:
    """``torch.autograd.profiler.emit_nvtx.__init__``."""
    name = "torch.autograd.profiler.emit_nvtx"

    @functools.wraps(original)
    def init(self: Any, enabled: bool = True, record_shapes: bool = False) -> None:
        if enabled:
            current().uses.add(name, asker(1))
            current().uses.say_once(name, NO_EFFECT)
        original(self, False, record_shapes)

    return init


class Runtime:
    """Stands for CUDA's runtime, of which scripts ask that a profiler of NVIDIA's record from here to there."""

    def cudaProfilerStart(self) -> int:  # noqa: N802 -- its name there
        """Nothing; 0 is success."""
        return _accepted("torch.cuda.cudart().cudaProfilerStart")

    def cudaProfilerStop(self) -> int:  # noqa: N802 -- likewise
        """Likewise."""
        return _accepted("torch.cuda.cudart().cudaProfilerStop")

    def __getattr__(self, name: str) -> Any:
        return refused(f"torch.cuda.cudart().{name}", why_absent("cudart") or "")(Runtime)()


def _accepted(name: str) -> int:
    uses = current().uses
    uses.add(name, asker(2))
    uses.say_once(name, NO_EFFECT)
    return 0


OF_CUDA: dict[str, Callable[..., Any]] = {"cudart": Runtime, "check_error": lambda result: None}  # noqa: ARG005
"""Functions of ``torch.cuda`` that scripts start NVIDIA's profilers with."""
