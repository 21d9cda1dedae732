"""The scripts of ``tests/scripts``: cuda code as people write it, unmodified, and how to run it and read its numbers.

Each prints its results as lines of a name and a number (``loss 1.2345``). The judge is the host (``run_on_host.py``).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / "scripts"


@dataclass(frozen=True)
class Script:
    """One script, and how close its numbers are to the host's.

    Args:
        name: its file, without the suffix.
        tolerance: allowed difference, relative to numbers larger than 1 and absolute below.
        processes: more than one are started by torchrun.
        why: what makes it special among the others.
    """

    name: str
    why: str
    tolerance: float = 1e-4
    processes: int = 1

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.py"


SCRIPTS = (
    Script(
        "digits_classifier", 'device = torch.device("cuda" if ...), cuda seeds, cudnn flags, pinned loaders'
    ),
    Script("gan", "`if cuda: model.cuda()`, torch.cuda.FloatTensor, Variable"),
    Script("vae", "use of a worker process with pinned memory; random numbers drawn on the device"),
    Script("lstm_text", "asserts that there is a GPU; set_device, get_device_name, nn.LSTM"),
    Script("mini_gpt", "device = 'cuda' as a setting; tf32 flags, pin_memory().to(), tied weights"),
    Script("ddp_nccl", "torchrun with nccl: DDP, all_reduce, all_gather, .cuda(local_rank)", processes=2),
    Script("amp_old_api", "torch.cuda.amp.autocast and GradScaler, convolutions in float16", tolerance=2e-2),
    Script("amp_new_api", 'torch.amp with "cuda", float16 and bfloat16', tolerance=2e-3),
    Script("resume_checkpoint", "map_location in every form, cuda random states in the checkpoint"),
    Script("grad_accumulation", "nested batches, activation checkpointing, peak memory"),
    Script("custom_function", "autograd.Function, custom_fwd and custom_bwd, gradcheck", tolerance=1e-3),
    Script("mixed_moves", ".cuda(0), .to(0), device=0, is_cuda, get_device, torch.cuda.device, str(device)"),
    Script("hf_trainer", "Trainer of transformers, which asks torch.cuda itself", tolerance=1e-3),
    Script("profile_step", "ProfilerActivity.CUDA, sort_by cuda_time_total, nvtx, use_cuda=True"),
    Script("compile_train", "torch.compile with aot_eager and eager around a cuda module"),
    Script("streams_events", "prefetcher on a side stream, record_stream, events that time"),
    Script("generate_text", "generate of GPT-2 and Llama under inference_mode", tolerance=1e-3),
    Script("data_parallel", "nn.DataParallel over every device there is; CUDA_VISIBLE_DEVICES"),
)


def numbers(output: str) -> dict[str, float]:
    """The results in what a script printed: lines of a name and a number."""
    return {
        name: float(value)
        for name, value in re.findall(r"^(\w+) (-?\d[\d.e+-]*|nan|inf)$", output, re.MULTILINE)
    }


def run(
    script: Script, *launcher: str, environment: Mapping[str, str] | None = None, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script to its end in processes of its own.

    Args:
        script: which.
        launcher: what python runs it with, such as ``"-m", "flroute", "run", "--strict"``; nothing is python itself.
        environment: variables beside those of this process.
        path: another file in its place, such as an edited copy.
    """
    command = [*launcher, str(path or script.path)]
    if script.processes > 1:
        command = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc_per_node={script.processes}",
            *command,
        ]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(environment or {})}
    return subprocess.run(
        [sys.executable, *command], env=variables, capture_output=True, text=True, check=False, timeout=600
    )


@cache
def host_numbers(script: Script) -> Mapping[str, float]:
    """What the host computes, in stock PyTorch: no device is registered, and nothing of flroute imported."""
    without = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": ""}
    done = run(script, str(HERE / "run_on_host.py"), environment=without)
    assert done.returncode == 0, done.stderr
    return numbers(done.stdout)


def differences(found: Mapping[str, float], expected: Mapping[str, float], tolerance: float) -> Sequence[str]:
    """In words, what is missing, new, or further from the expected numbers than the tolerance."""
    wrong = [
        f"{name} is {'missing' if name in expected else 'new'}" for name in found.keys() ^ expected.keys()
    ]
    for name in found.keys() & expected.keys():
        distance = abs(found[name] - expected[name]) / max(1.0, abs(expected[name]))
        if not distance <= tolerance:
            wrong.append(
                f"{name} is {found[name]}, on the host {expected[name]}: off by {distance:.1e} > {tolerance:.0e}"
            )
    return sorted(wrong)
