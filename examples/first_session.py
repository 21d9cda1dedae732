"""A first session: run a few ops on the reference vendor's device and see where each of them went.

Run it with ``python examples/first_session.py``.
"""

from __future__ import annotations

import torch

import flroute


def main() -> None:
    """Matrix product, relu and their gradients; then the report."""
    torch.manual_seed(0)
    with flroute.enable(device="reference", timing=True) as session:
        x = torch.randn(4, 4, requires_grad=True)  # lands on the device, as under `with torch.device(...)`
        loss = torch.relu(x @ x).sum()
        loss.backward()
    print(f"x and its gradient are on {x.device} and {x.grad.device}; the loss is {loss.item():.4f}\n")
    print(session.report())


if __name__ == "__main__":
    main()
