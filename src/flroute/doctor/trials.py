"""What the doctor has each device compute: a matrix product, copies, a training step, all judged in float64 on the host.

They run in a process of their own: a driver that crashes or hangs there is a red line here, and names the device.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from flroute.doctor.checks import Check, State

if TYPE_CHECKING:
    import torch

    from flroute.device.table import Device
    from flroute.session import Session

PATIENCE = 300.0
"""Seconds that all trials of all devices may take together."""

_COPY_BYTES = 32 * 2**20
_COPY_TIMES = 3
_CHILD = "import sys; from flroute.doctor.trials import run_all; run_all(sys.argv[1])"

Trial = Callable[["Device"], Check]


def in_another_process() -> Iterator[Check]:
    """Every trial on every device, each the doctor's own line."""
    with tempfile.TemporaryDirectory() as folder:
        progress = Path(folder, "progress.jsonl")
        progress.touch()
        ended = _run_child(progress)
        records = [json.loads(line) for line in progress.read_text(encoding="utf-8").splitlines()]
    for record in records:
        if "state" in record:
            yield Check(**{**record, "state": State(record["state"])})
    if ended:
        begun = records[-1]["about"] if records and "state" not in records[-1] else "trials"
        yield Check(
            begun, State.RED, ended,
            "the vendor's driver or kernel ended the process; report it to its maker, and leave the device out until then",
        )  # fmt: skip


def _run_child(progress: Path) -> str | None:
    """Run the trials; how the process died, if it did."""
    command = [sys.executable, "-c", _CHILD, str(progress)]
    environment = {
        **os.environ,
        "FLROUTE_TRACE": "",
        "FLROUTE_LOCKED": "",
    }  # whoever asks for these did not mean trials
    try:
        done = subprocess.run(  # noqa: S603 -- this very interpreter, and a path of our own
            command, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PATIENCE:.0f} s"
    if done.returncode == 0:
        return None
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"the process that tried it ended with code {done.returncode}: {last}"


def run_all(progress: str) -> None:
    """Write what is begun and how it ended to ``progress``, a line each."""
    from flroute.device import table

    with Path(progress).open("a", encoding="utf-8", buffering=1) as lines:
        for device in table.devices():
            for name, trial in TRIALS.items():
                about = f"{device.name} {name}"
                lines.write(json.dumps({"about": about}) + "\n")
                lines.write(json.dumps(asdict(tried(about, trial, device))) + "\n")


def tried(about: str, trial: Trial, device: Device) -> Check:
    """One trial; what it raises is red."""
    try:
        return trial(device)
    except Exception as error:  # noqa: BLE001 -- a vendor's code may raise anything, and the other trials go on
        return Check(
            about, State.RED, f"{type(error).__name__}: {error}",
            f"the error comes from {device.vendor}; report it to its maker",
        )  # fmt: skip


def matrix_product(device: Device) -> Check:
    """A product whose every element is as near to float64's as float32's roundings, adding up at random, leave it."""
    import torch

    about = f"{device.name} matrix product"
    a, b = _normal(37, 129), _normal(129, 65)
    with _session(device) as session:
        product = (a.to(device.torch_device) @ b.to(device.torch_device)).cpu()
    exact = a.double() @ b.double()
    bound = math.sqrt(a.shape[1]) * torch.finfo(torch.float32).eps * (a.double().abs() @ b.double().abs())
    error = (product.double() - exact).abs()
    wrong = (~(error <= bound)).nonzero()  # NaN is wrong, too
    if len(wrong):
        row, column = wrong[0].tolist()
        return Check(
            about, State.RED,
            f"{len(wrong)} of {exact.numel()} elements are wrong, the first at [{row}, {column}]: "
            f"{product[row, column].item():.7g}, in float64 {exact[row, column].item():.7g}",
            f'report it to the maker of {device.vendor}; until then order={{"aten::mm": ["host"]}} keeps it on the host',
        )  # fmt: skip
    on_host = (a @ b).double().sub(exact).abs().max().item()
    found = f"largest error {error.max().item():.2g}, on the host {on_host:.2g}"
    return _unless_fallen_back(about, found, session)


def copies(device: Device) -> Check:
    """Bytes that come back as they went, and how fast."""
    import torch

    about = f"{device.name} copies"
    size = max(1, min(_COPY_BYTES, device.facts.total_memory // 16))
    there = torch.randint(256, (size,), dtype=torch.uint8, generator=_generator())
    with _session(device):
        to_device = min(_seconds(lambda: there.to(device.torch_device), device) for _ in range(_COPY_TIMES))
        moved = there.to(device.torch_device)
        to_host = min(_seconds(moved.cpu, device) for _ in range(_COPY_TIMES))
        back = moved.cpu()
    if not torch.equal(there, back):
        changed = int((there != back).sum())
        return Check(
            about, State.RED, f"{changed} of {size} bytes came back changed",
            f"check the driver of {device.vendor} and the device's memory: no result can be trusted",
        )  # fmt: skip
    rates = f"{size / to_device / 1e9:.2f} GB/s to the device, {size / to_host / 1e9:.2f} GB/s back"
    return Check(about, State.GREEN, f"{rates} ({size / 2**20:.3g} MiB)")


def training_step(device: Device) -> Check:
    """One step of SGD on a small perceptron, whose weights must end where float64 on the host has them."""
    import torch

    about = f"{device.name} training step"
    images, labels = _normal(16, 12), torch.arange(16) % 5
    expected = _trained(_perceptron().double(), images.double(), labels)
    with _session(device) as session:
        there = device.torch_device
        weights = _trained(_perceptron().to(there), images.to(there), labels.to(there))
    for name, value in weights.items():
        distance = (value.double() - expected[name]).abs().max().item()
        if not distance <= 1e-5:
            return Check(
                about, State.RED, f"{name} is off by {distance:.2g} after one step, in float64",
                f"flroute.enable(device='{device.vendor_device}', debug=True) checks every kernel's result",
            )  # fmt: skip
    return _unless_fallen_back(about, "weights as on the host", session)


TRIALS: dict[str, Trial] = {
    "matrix product": matrix_product,
    "copies": copies,
    "training step": training_step,
}


def _session(device: Device) -> AbstractContextManager[Session]:
    from flroute.session import enable

    return enable(device.torch_device, fallback="allow", default_device=False)


def _unless_fallen_back(about: str, found: str, session: Session) -> Check:
    ops = list(dict.fromkeys(decision.op for decision in session.fallbacks))
    if not ops:
        return Check(about, State.GREEN, f"{found}; all of it native")
    return Check(
        about, State.YELLOW, f"{found}; the host computed {', '.join(ops)}",
        "these ops need kernels from the vendor: `flroute ops NAME` says which there are",
    )  # fmt: skip


def _generator() -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(0)


def _normal(*shape: int) -> torch.Tensor:
    import torch

    return torch.randn(shape, generator=_generator())


def _seconds(work: Callable[[], object], device: Device) -> float:
    import torch

    start = time.perf_counter()
    work()
    torch.fl.synchronize(device.index)  # type: ignore[attr-defined]
    return time.perf_counter() - start


def _perceptron() -> torch.nn.Module:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
    generator = _generator()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    return model


def _trained(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return {name: value.detach().cpu() for name, value in model.named_parameters()}
