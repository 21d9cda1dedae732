"""flroute: a chip joins PyTorch as a pip-installable Python package.

>>> import flroute, torch
>>> with flroute.enable(device="reference") as session:
...     y = torch.relu(torch.ones(2, 2) @ torch.ones(2, 2))
>>> y.device
device(type='fl', index=0)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flroute.activation import activate_if_alone
from flroute.api import current_device, device, devices, vendors
from flroute.drift.bisect.bisect import bisect
from flroute.drift.bisect.bisection import Bisection
from flroute.drift.compare.compare import compare
from flroute.drift.compare.comparison import Comparison
from flroute.drift.compare.saved_runs import compare_saved, record
from flroute.drift.consistency.consistency import consistency
from flroute.drift.shadow.shadow import shadow
from flroute.drift.shadow.tensor import ShadowTensor
from flroute.errors import (
    AliasError,
    AutocastError,
    BisectError,
    CheckpointError,
    CollectiveError,
    ComparisonError,
    CompatibilityError,
    DeviceError,
    FallbackError,
    FlrouteError,
    KernelResultError,
    LockError,
    SettingsError,
    ShadowError,
    StreamError,
    UnknownVendorError,
    Unsupported,
    VendorError,
)
from flroute.model_check import check
from flroute.process_session import open_if_asked
from flroute.safetensors_files import load_file
from flroute.session import Session, enable
from flroute.vocabulary import Decision, FallbackPolicy, Precision, Reason, Redirected, Rejection, Route

__version__ = "0.1.0"

__all__ = [
    "AliasError",
    "AutocastError",
    "BisectError",
    "Bisection",
    "CheckpointError",
    "CollectiveError",
    "Comparison",
    "ComparisonError",
    "CompatibilityError",
    "Decision",
    "DeviceError",
    "FallbackError",
    "FallbackPolicy",
    "FlrouteError",
    "KernelResultError",
    "LockError",
    "Precision",
    "Reason",
    "Redirected",
    "Rejection",
    "Route",
    "Session",
    "SettingsError",
    "ShadowError",
    "ShadowTensor",
    "StreamError",
    "UnknownVendorError",
    "Unsupported",
    "VendorError",
    "bisect",
    "check",
    "compare",
    "compare_saved",
    "consistency",
    "current_device",
    "device",
    "devices",
    "enable",
    "load_file",
    "record",
    "shadow",
    "vendors",
]

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from flroute.drift.bisect.bisect import bisect
    from flroute.drift.bisect.bisection import Bisection
    from flroute.drift.compare.compare import compare
    from flroute.drift.compare.comparison import Comparison
    from flroute.drift.compare.saved_runs import compare_saved, record
    from flroute.drift.consistency.consistency import consistency
    from flroute.drift.shadow.shadow import shadow
    from flroute.drift.shadow.tensor import ShadowTensor

_LOADED_LATER = {
    "Bisection": "flroute.drift.bisect.bisection",
    "Comparison": "flroute.drift.compare.comparison",
    "ShadowTensor": "flroute.drift.shadow.tensor",
    "bisect": "flroute.drift.bisect.bisect",
    "compare": "flroute.drift.compare.compare",
    "compare_saved": "flroute.drift.compare.saved_runs",
    "consistency": "flroute.drift.consistency.consistency",
    "record": "flroute.drift.compare.saved_runs",
    "shadow": "flroute.drift.shadow.shadow",
}
"""Tools that most programs never ask for: where each is."""


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LOADED_LATER})


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext flroute``: the cell magic ``%%flroute``, and tensors on the device as HTML."""
    from flroute.plugins import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext flroute``: undo all of that."""
    from flroute.plugins import notebook

    notebook.unload(shell)


activate_if_alone()
open_if_asked()
