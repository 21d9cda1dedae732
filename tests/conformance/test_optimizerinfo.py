"""PyTorch's optimizer database on the device: a few steps end where the host's do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db
from torch.utils._pytree import tree_leaves

from .checking import check
from .moving import Call
from .outcome import Outcome
from .target import PLAIN, SESSION, Target
from .trial import Trial, seed_everything

DTYPES = (torch.float32, torch.float64)
STEPS = 3
HOST_STATE = {"step", "mu_product"}
FLAGS: dict[str, dict[str, bool]] = {
    "default": {},
    "forloop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One node per optimizer, implementation and dtype."""
    if "optim_info" not in metafunc.fixturenames:
        return
    on_reference = metafunc.config.getoption("conformance_device", "reference").startswith("reference")
    dtypes = DTYPES if on_reference else (torch.float32,)
    nodes = [
        (info, flag, dtype)
        for info in optim_db
        for flag in FLAGS
        if flag in ("default", *(impl for impl in info.supported_impls if len(info.supported_impls) > 1))
        for dtype in dtypes
    ]
    ids = [f"{name_of(info)}-{flag}-{str(dtype)[6:]}" for info, flag, dtype in nodes]
    metafunc.parametrize(("optim_info", "flag", "dtype"), nodes, ids=ids)


def test_optimizer(optim_info: OptimizerInfo, flag: str, dtype: torch.dtype, target: Target) -> None:
    """Parameters, losses and optimizer state after a few steps are the host's."""
    outcome = Outcome(name_of(optim_info), str(dtype)[6:], (PLAIN, SESSION))
    for trial in trials(optim_info, FLAGS[flag], dtype):
        check(trial, target, outcome)
    outcome.verdict()


def name_of(info: OptimizerInfo) -> str:
    """The name of the class."""
    optimizer: Any = info.optim_cls  # a class, which PyTorch declares as an instance
    return str(optimizer.__name__)


def trials(info: OptimizerInfo, flags: dict[str, bool], dtype: torch.dtype) -> Iterator[Trial]:
    """A small network trained with each of PyTorch's sets of hyperparameters."""
    for sample in info.optim_inputs_func(device="cpu", dtype=dtype):
        seed_everything()
        module = small_network(info).to(dtype)
        data = torch.arange(6) if info.only_supports_sparse_grads else torch.randn(6, 4, dtype=dtype)
        call = Call(module, (data, info, {**sample.kwargs, **flags}), {})
        yield Trial(sample.desc, train, call, writes=True)


def small_network(info: OptimizerInfo) -> torch.nn.Module:
    """Two layers. Muon takes matrices only, SparseAdam sparse gradients only."""
    if info.only_supports_sparse_grads:
        return torch.nn.Embedding(6, 5, sparse=True)
    bias = name_of(info) != "Muon"
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5, bias=bias), torch.nn.Tanh(), torch.nn.Linear(5, 3, bias=bias)
    )


def train(module: torch.nn.Module, data: torch.Tensor, info: OptimizerInfo, settings: dict[str, Any]) -> Any:
    """Losses and optimizer state after a few steps. The parameters are compared as arguments that were written."""
    make: Any = info.optim_cls
    optimizer = make(module.parameters(), **settings)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = module(data).pow(2).mean()
        loss.backward()
        return loss

    losses = []
    for _ in range(STEPS):
        if info.step_requires_closure:
            losses.append(optimizer.step(closure))
        else:
            losses.append(closure())
            optimizer.step()
    return [loss.detach() for loss in losses], [] if info.step_requires_closure else state_of(optimizer)


def state_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Its tensors, but for the counters that PyTorch keeps on the host. LBFGS's history grows with its line search."""
    held = [(name, value) for state in optimizer.state.values() for name, value in state.items()]
    return [
        leaf
        for name, value in held
        if name not in HOST_STATE
        for leaf in tree_leaves(value)
        if leaf is not None
    ]
