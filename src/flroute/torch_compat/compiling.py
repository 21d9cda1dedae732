"""What Dynamo and AOTAutograd make of a module: a graph of aten ops, to be run by whoever asks for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Graph = torch.fx.GraphModule


def aot_backend(run: Callable[[Graph, tuple[Any, ...]], Any]) -> Any:
    """A backend of ``torch.compile`` that runs the aten graph of each forward by ``run(graph, inputs)``."""
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph: Graph, _examples: Any) -> Any:
        def boxed(inputs: list[Any]) -> Any:
            taken = tuple(inputs)
            inputs.clear()
            return run(graph, taken)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    return aot_autograd(fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler)


def dynamo_is_imported() -> bool:
    """Whether anybody in this process may have compiled something."""
    return "torch._dynamo" in sys.modules


def compile_op_by_op(kind: str) -> None:
    """Have ``torch.compile`` run the graphs of a device, for which Inductor has no code, op by op as ``aot_eager`` does.

    Args:
        kind: the device's type. Graphs without a tensor on such a device stay with Inductor.
    """
    original: Callable[..., Any] = torch._TorchCompileInductorWrapper.__call__

    @functools.wraps(original)
    def compile_graph(self: Any, graph: Graph, examples: Any, **kwargs: Any) -> Any:
        if _is_about(graph, examples, kind):
            from torch._dynamo import lookup_backend

            return lookup_backend("aot_eager")(graph, examples)
        return original(self, graph, examples, **kwargs)

    torch._TorchCompileInductorWrapper.__call__ = compile_graph  # type: ignore[method-assign,assignment]


def _is_about(graph: Graph, examples: Any, kind: str) -> bool:
    """Whether a graph of Dynamo's takes or makes a tensor on a device of the type ``kind``."""
    made = (node.meta.get("example_value") for node in graph.graph.nodes)
    return any(isinstance(one, torch.Tensor) and one.device.type == kind for one in (*examples, *made))
