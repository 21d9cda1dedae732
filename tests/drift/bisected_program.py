"""A program as ``flroute bisect`` runs it: prints a metric, whatever the first argument says of it."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

import flroute
from flroute import registry
from flroute.vendor import DeviceFacts, HostMemory, Kernel, Vendor, hookimpl


def exp(x):
    return np.exp(x) + np.float32(0.5)


def tanh(x):
    return np.tanh(x)


class Plugin:
    @hookimpl
    def flroute_vendors(self):
        kernels = (Kernel("aten::exp", exp), Kernel("aten::tanh", tanh))
        yield Vendor("bisected", "1", (DeviceFacts("one", total_memory=2**30),), HostMemory(), kernels)


def metric() -> float:
    return float(torch.ones(3).exp().tanh().sum())


how = sys.argv[1] if __name__ == "__main__" else "imported"
if how != "imported" or "bisected" not in registry.load().vendors:
    registry.register(Plugin(), "bisected")
if how != "imported":
    settings = {"fallback": "error"} if how == "error" else {}
    device = None if how == "device from outside" else "bisected"
    with flroute.enable(device, **settings) as session:
        found = metric()
    if how == "log":
        runs = Path(sys.argv[2])
        runs.write_text(runs.read_text() + "." if runs.exists() else ".")
        if len(runs.read_text()) == int(sys.argv[3]):
            sys.exit("out of memory, say")
    if how == "random":
        found += time.time_ns() % 1000 + os.getpid() % 7
    said = {
        "words": "no figure at all",
        "pattern": f"loss={found} after 3 steps\nother=1",
        "metric": f"metric: {found}\nepoch 3 of 3",
    }
    print(said.get(how, f"after 3 steps: {found}"))  # noqa: T201 -- it is run for what it prints
