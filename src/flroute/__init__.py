"""flroute: a chip joins PyTorch as a pip-installable Python package.

>>> import flroute, torch
>>> with flroute.enable(device="reference") as session:
...     y = torch.relu(torch.ones(2, 2) @ torch.ones(2, 2))
>>> y.device
device(type='fl', index=0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flroute.activation import activate_if_alone
from flroute.api import current_device, device, devices, vendors
from flroute.drift.bisect import bisect
from flroute.drift.bisection import Bisection
from flroute.drift.compare import compare
from flroute.drift.comparison import Comparison
from flroute.drift.consistency import consistency
from flroute.drift.saved_runs import compare_saved, record
from flroute.drift.shadow import shadow
from flroute.drift.shadow_tensor import ShadowTensor
from flroute.errors import (
    AutocastError,
    BisectError,
    CheckpointError,
    ComparisonError,
    CompatibilityError,
    DeviceError,
    FallbackError,
    FlrouteError,
    KernelResultError,
    LockError,
    SettingsError,
    ShadowError,
    UnknownVendorError,
    Unsupported,
    VendorError,
)
from flroute.model_check import check
from flroute.safetensors_files import load_file
from flroute.session import Session, enable
from flroute.vocabulary import Decision, FallbackPolicy, Precision, Reason, Rejection, Route

__version__ = "0.1.0"

__all__ = [
    "AutocastError",
    "BisectError",
    "Bisection",
    "CheckpointError",
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
    "Rejection",
    "Route",
    "Session",
    "SettingsError",
    "ShadowError",
    "ShadowTensor",
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


def load_ipython_extension(shell: InteractiveShell) -> None:
    """``%load_ext flroute``: the cell magic ``%%flroute``, and tensors on the device as HTML."""
    from flroute.plugins import notebook

    notebook.load(shell)


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """``%unload_ext flroute``: undo all of that."""
    from flroute.plugins import notebook

    notebook.unload(shell)


activate_if_alone()
