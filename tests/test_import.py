"""Importing: any order, any environment, cheap, and never the reason that ``import torch`` fails."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

slow = pytest.mark.slow
QUIET = "import logging; logging.disable(logging.CRITICAL)\n"


def python(code: str, *, ok: bool = True, path: Path | None = None, **environment: str) -> str:
    """Standard output of a fresh interpreter; ``path`` comes first on its module path."""
    variables = {
        k: v for k, v in os.environ.items() if k not in ("FLROUTE_AUTOLOAD", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    }
    variables |= {"OMP_NUM_THREADS": "1", **environment}
    if path is not None:
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), variables.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", QUIET + textwrap.dedent(code)],
        env=variables, text=True, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) == ok, f"exit code {done.returncode}: {done.stdout}{done.stderr[-3000:]}"
    return done.stdout if ok else done.stderr


KNOWN = """
def known():
    try:
        return str(torch.device("fl"))
    except RuntimeError:
        return "unknown"
"""


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import torch", marks=slow),
        "import flroute; import torch",
        pytest.param("import torch; import flroute", marks=slow),
        pytest.param("import flroute.vendor; import torch", marks=slow),
        pytest.param("import torch; import flroute.reference_vendor", marks=slow),
        pytest.param("import flroute_autoload; import torch", marks=slow),
        pytest.param("import flroute_autoload; flroute_autoload.autoload(); import torch", marks=slow),
        pytest.param("from flroute import enable; import torch", marks=slow),
        pytest.param("import numpy; import flroute.errors; import torch", marks=slow),
    ],
)
def test_any_order(imports: str) -> None:
    code = f"""
    {imports}
    x = torch.ones(2, device="fl", requires_grad=True)
    (x * 2).sum().backward()
    print(torch.device("fl"), x.grad.tolist(), torch.fl.is_available())
    import flroute, flroute_autoload
    with flroute.enable("reference"):
        print(torch.ones(1).device, flroute_autoload.failure)
    """
    assert python(code).splitlines() == ["fl [2.0, 2.0] True", "fl:0 None"]


@pytest.mark.parametrize(
    ("environment", "bare", "with_flroute"),
    [
        ({}, "fl", "fl"),
        ({"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "unknown", "fl"),
        pytest.param({"FLROUTE_AUTOLOAD": "0"}, "unknown", "unknown", marks=slow),
        pytest.param({"FLROUTE_AUTOLOAD": "1"}, "fl", "fl", marks=slow),
        pytest.param(
            {"FLROUTE_AUTOLOAD": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "unknown", "fl", marks=slow
        ),
    ],
    ids=str,
)
def test_autoload(environment: dict[str, str], bare: str, with_flroute: str) -> None:
    code = f"""
    import torch
    {textwrap.indent(KNOWN, "    ").strip()}
    print(known())
    import flroute
    print(known())
    with flroute.enable("reference"):
        print(known(), torch.ones(1).device)
    print(known())
    """
    assert python(code, **environment).splitlines() == [bare, with_flroute, "fl fl:0", "fl"]


ANOTHER_ACCELERATOR = """
import torch
torch.accelerator.is_available = lambda: True
"""


@pytest.mark.parametrize(("autoload", "expected"), [(None, "unknown"), pytest.param("1", "fl", marks=slow)])
def test_another_accelerator_keeps_its_place(autoload: str | None, expected: str) -> None:
    environment = {
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        **({} if autoload is None else {"FLROUTE_AUTOLOAD": autoload}),
    }
    code = f"{ANOTHER_ACCELERATOR}\nimport flroute\n{KNOWN}\nprint(known())"
    assert python(code, **environment).split() == [expected]


def test_a_wrong_setting_does_not_break_import_torch() -> None:
    """It is said once, for a script that goes on would only show that PyTorch knows no 'fl'."""
    code = """
    import warnings
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        import torch
    print(torch.ones(2).sum().item())
    import flroute_autoload
    print(type(flroute_autoload.failure).__name__, "FLROUTE_AUTOLOAD" in str(flroute_autoload.failure))
    print(*(w.message for w in told if issubclass(w.category, RuntimeWarning)))
    """
    value, failure, told = python(code, FLROUTE_AUTOLOAD="perhaps").splitlines()
    assert (value, failure) == ("2.0", "SettingsError True")
    assert told.startswith("there is no device 'fl': ")
    assert "'perhaps' is not allowed" in told


BROKEN = {
    "numpy": 'raise ModuleNotFoundError("this numpy is broken")',  # PyTorch itself needs no numpy
    "pluggy": 'raise RuntimeError("this pluggy is broken")',
    "packaging": "raise SystemExit(3)",
}


@pytest.mark.parametrize("package", [p if p == "numpy" else pytest.param(p, marks=slow) for p in BROKEN])
def test_a_broken_dependency_does_not_break_import_torch(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(BROKEN[package])
    code = """
    import warnings; warnings.simplefilter("ignore")
    import sys, torch
    print((torch.ones(2) + 1).sum().item())
    import flroute_autoload
    print(flroute_autoload.failure is not None, "flroute" in sys.modules)
    """
    assert python(code, path=tmp_path).splitlines() == ["4.0", "True False"]
    assert "broken" in python("import flroute", ok=False, path=tmp_path) or package in (
        "structlog",
        "packaging",
    )


@pytest.mark.parametrize(
    "order", [pytest.param("import torch; import flroute", marks=slow), "import flroute; import torch"]
)
def test_a_broken_vendor_does_not_break_anything(order: str, tmp_path: Path) -> None:
    (tmp_path / "flroute_broken.py").write_text("raise ValueError('no driver')")
    info = tmp_path / "flroute_broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: flroute-broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[flroute]\nbroken = flroute_broken\n")
    code = f"""
    {order}
    print(torch.ones(2, device="fl").sum().item())
    from flroute import registry
    print([p.plugin for p in registry.load().problems], "no driver" in str(registry.load().problems[0]))
    try:
        flroute.enable("broken")
    except flroute.UnknownVendorError as error:
        print("reference" in str(error), "no driver" in str(error))
    """
    assert python(code, path=tmp_path).splitlines() == ["2.0", "['broken'] True", "True True"]


@pytest.mark.parametrize("registered", [pytest.param(True, marks=slow), False])
def test_another_owner_of_the_slot(registered: bool) -> None:
    """The import of neither package fails; ``enable`` says who holds the slot, and what to do.

    A backend may rename the slot before it registers its module.
    """
    code = f"""
    import types, torch
    torch.utils.rename_privateuse1_backend("npu")
    if {registered}:
        module = types.ModuleType("torch.npu")
        module.is_available = lambda: True
        module.device_count = lambda: 1
        module.current_device = lambda: 0
        torch._register_device_module("npu", module)
    import flroute
    try:
        flroute.enable("reference")
    except flroute.CompatibilityError as error:
        print("'npu'" in str(error), "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in str(error))
    print(torch.ones(2).sum().item())
    """
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines() == ["True True", "2.0"]


@slow
def test_another_owner_of_the_slot_that_is_not_available() -> None:
    code = """
    import types, torch
    torch.utils.rename_privateuse1_backend("npu")
    module = types.ModuleType("torch.npu")
    module.is_available = lambda: False
    torch._register_device_module("npu", module)
    try:
        import flroute
        flroute.enable("reference")
    except ImportError as error:
        print(type(error).__name__, "'npu'" in str(error))
    """
    assert python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines() == ["CompatibilityError True"]


def test_import_starts_nothing() -> None:
    code = """
    import sys, threading, torch
    before = set(sys.modules)
    import flroute
    new = set(sys.modules) - before
    print(threading.active_count())
    print(sorted(m for m in new if m.startswith(("flroute.reference_vendor", "flroute_opaque", "torch._dynamo.", "torch._inductor",
                                                 "sympy", "typer", "flroute.cli", "flroute.demo"))))
    from flroute import registry
    from flroute.device import table
    print(registry._registry, table._devices)
    print(torch.is_grad_enabled(), torch.get_default_device(), torch._C._len_torch_dispatch_stack())
    x = torch.nn.Linear(2, 2)(torch.ones(2))
    x.sum().backward()
    print(registry._registry, "torch._dynamo.eval_frame" in sys.modules)
    """
    lines = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0").splitlines()
    assert lines == ["1", "[]", "None None", "True cpu 0", "None False"]


@pytest.mark.slow
def test_import_is_cheap(record_property: pytest.RecordProperty) -> None:
    """Measured as a share of ``import torch``, in alternation; what it may cost is a benchmark's business, not a test's."""
    code = """
    import time
    start = time.perf_counter(); import torch; middle = time.perf_counter(); import flroute; end = time.perf_counter()
    print((end - middle) / (middle - start))
    """
    shares = [float(python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")) for _ in range(5)]
    record_property("import_flroute_over_import_torch", statistics.median(shares))
    assert statistics.median(shares) < 1, "importing flroute must not cost more than importing PyTorch"


def test_a_device_that_pytorch_does_not_know_yet_is_registered_when_asked_for() -> None:
    code = """
        import flroute, torch
        from flroute import activation, registry
        from flroute.vendor import DeviceFacts, HostMemory, Vendor, hookimpl
        class Plugin:
            @hookimpl
            def flroute_vendors(self):
                yield Vendor("mine", "1", (DeviceFacts("mine", 2**30),), HostMemory())
        (device,) = registry.register(Plugin(), "mine")
        print(device.name, flroute.devices()[-1] == device, activation.is_active())
        print(device.torch_device, torch.ones(2).to(device.torch_device).tolist(), activation.is_active())
    """
    name, same, active, device, *values = python(code, FLROUTE_AUTOLOAD="0").split()
    assert name == device
    assert (same, active, values) == ("True", "False", ["[1.0,", "1.0]", "True"])


@pytest.mark.parametrize(
    "imports", ["import flroute.device", "import flroute.device.table", "from flroute.device import table"]
)
def test_the_name_of_the_subpackage_is_that_of_the_function(imports: str) -> None:
    """Whichever is imported first, ``flroute.device`` is called."""
    assert python(f"{imports}\nimport flroute\nprint(flroute.device('reference:1'))").strip() == "fl:1"
