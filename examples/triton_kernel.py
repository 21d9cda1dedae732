"""Triton kernels of one's own: as the kernel of an op, as an op of a model's, and launched directly.

Run it with ``python examples/triton_kernel.py``; it takes the extra ``flroute[triton]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

import flroute
from flroute import registry
from flroute.reference_vendor.triton_cpu import direct
from flroute.vendor import Kernel, hookimpl

BLOCK = 1024


# 1. The kernel of an op that PyTorch has. A package would name its module in the entry-point group ``flroute``.


@triton.jit
def silu_kernel(x, out, n, BLOCK: tl.constexpr):
    """x * sigmoid(x)."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    tl.store(out + i, v * tl.sigmoid(v), mask=i < n)


compiled_silu = direct.load(silu_kernel, {"x": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": BLOCK})


def fused_silu(x: np.ndarray) -> np.ndarray:
    """The kernel gets arrays and returns a new one; which op it computes is said below."""
    x = np.ascontiguousarray(x)
    out = np.empty_like(x)
    compiled_silu(triton.cdiv(x.size, BLOCK), x, out, x.size)
    return out


class Kernels:
    """A plugin that brings kernels to the reference vendor, in front of its own."""

    @hookimpl
    def flroute_kernels(self, vendor: str) -> Iterable[Kernel]:
        """One kernel."""
        if vendor == "reference":
            yield Kernel("aten::silu", fused_silu, implementation="triton", dtypes=(torch.float32,))


# 2. An op of a model's own, with a gradient; Triton sees tensors on ``fl``, as it would see a GPU's.


@triton.autotune([triton.Config({"BLOCK": size}) for size in (256, 4096)], key=["n"])
@triton.jit
def squared_relu_kernel(x, out, n, BLOCK: tl.constexpr):
    """max(x, 0) ** 2."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.maximum(tl.load(x + i, mask=i < n), 0)
    tl.store(out + i, v * v, mask=i < n)


@torch.library.triton_op("example::squared_relu", mutates_args={})
def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """One op to PyTorch: it can be differentiated, exported and traced."""
    x = x.contiguous()
    out = torch.empty_like(x)
    n = x.numel()
    torch.library.wrap_triton(squared_relu_kernel)[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
    return out


def _save(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001 -- names are PyTorch's
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    return grad * 2 * torch.relu(*ctx.saved_tensors)


squared_relu.register_autograd(_gradient, setup_context=_save)


class Block(torch.nn.Module):
    """A gated layer that uses both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Up, squared relu and silu, down."""
        hidden = self.up(x)
        return self.down(squared_relu(hidden) + torch.nn.functional.silu(hidden))


def main() -> float:
    """Train one step, launch a kernel directly, and show which kernels ran."""
    registry.register(Kernels(), "triton_example")
    torch.manual_seed(0)
    with flroute.enable(device="reference", fallback="error") as session:
        model, x = Block(32), torch.randn(8, 32)
        loss = model(x).square().mean()
        loss.backward()
        out = torch.empty_like(x)
        silu_kernel[(1,)](x, out, x.numel(), BLOCK=BLOCK)  # 3. directly
        difference = (out - torch.nn.functional.silu(x)).abs().max().item()
    print(session.report())
    print(f"loss {loss.item():.4f}; launched directly, silu differs by {difference:.1e} from the routed op")
    return difference


if __name__ == "__main__":
    main()
