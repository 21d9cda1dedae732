"""PyTorch's module database on the device: forward, backward and buffers, trained and evaluated."""

from __future__ import annotations

import zlib

import pytest
import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db

from .checking import check
from .moving import Call
from .outcome import Outcome
from .sampling import chosen
from .target import PLAIN, SESSION, Target
from .trial import Trial, seed_everything

DTYPES = (torch.float32, torch.float64)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One node per module, dtype and training flag."""
    if "module_info" not in metafunc.fixturenames:
        return
    on_reference = metafunc.config.getoption("conformance_device", "reference").startswith("reference")
    dtypes = DTYPES if on_reference else (torch.float32,)
    nodes = [
        (info, dtype, training)
        for info in module_db
        for dtype in dtypes
        if dtype in info.supported_dtypes("cpu")
        for training in ((True, False) if info.train_and_eval_differ else (True,))
    ]
    ids = [
        f"{info.name}-{str(dtype)[6:]}-{'train' if training else 'eval'}" for info, dtype, training in nodes
    ]
    metafunc.parametrize(("module_info", "dtype", "training"), nodes, ids=ids)


def test_module(
    module_info: ModuleInfo,
    dtype: torch.dtype,
    training: bool,
    target: Target,
    request: pytest.FixtureRequest,
) -> None:
    """The module on the device does what it does on the host; so do its gradients and its running statistics."""
    outcome = Outcome(module_info.name, str(dtype)[6:], (PLAIN, SESSION))
    for trial in chosen(trials(module_info, dtype, training), dtype, target, request.config):
        check(trial, target, outcome)
    outcome.verdict()


def trials(info: ModuleInfo, dtype: torch.dtype, training: bool) -> list[Trial]:
    """The module with each of PyTorch's inputs, made on the host."""
    made = []
    seed_everything(zlib.crc32(info.name.encode()))
    samples = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    for number, sample in enumerate(samples):
        if sample.forward_input is None:
            continue
        module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
        call = Call(module.to(dtype).train(training), sample.forward_input.args, sample.forward_input.kwargs)
        made.append(Trial(f"input {number} {sample.desc}", call_module, call))
    return made


def call_module(module: torch.nn.Module, *args: object, **kwargs: object) -> object:
    """The forward call, as a function of the module."""
    return module(*args, **kwargs)
