"""Layers of a model that is a graph by now: each node says which modules it was made in."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from torch.fx import GraphModule, Interpreter, Node

from flroute.drift.compare.kept import Kept, keep
from flroute.drift.compare.run import key
from flroute.drift.compare.trees import named_tensors

Call = tuple[str, int]
"""A module's path, and how often it was called before."""

_ROOT = re.compile(r"^L\['\w+'\]\.?")
"""How Dynamo names the model that it was given."""


class LayerKeeper:
    """Runs graphs node by node, and keeps what each call of a module gives.

    Attributes:
        found: what was kept, under the names that runs use.
    """

    def __init__(self) -> None:
        self.found: dict[str, Kept] = {}
        self._turns: Counter[str] = Counter()

    def run(self, graph: GraphModule, inputs: tuple[Any, ...]) -> Any:
        """What a graph makes of its inputs.

        Args:
            graph: of ``torch.export`` or AOTAutograd.
            inputs: of the module that it was, keyword arguments behind the others.
        """
        interpreter = _Keeping(graph, self.found, _last_nodes(graph, self._turns))
        return interpreter.run(*inputs)


class _Keeping(Interpreter):
    def __init__(self, graph: GraphModule, found: dict[str, Kept], last: dict[Node, list[Call]]) -> None:
        super().__init__(graph)
        self._found, self._last = found, last

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        for module, turn in self._last.get(n, ()):
            for at, (_, tensor) in enumerate(named_tensors(result)):
                kept = keep(tensor)
                if kept is not None:
                    self._found[key("output", module, turn, at)] = kept
        return result


def _last_nodes(graph: GraphModule, turns: Counter[str]) -> dict[Node, list[Call]]:
    """For each node the calls of modules that end with it; ``turns`` counts them on."""
    last: dict[Call, Node] = {}
    under_way: dict[str, Call] = {}
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        entered: dict[str, Call] = {}
        for mark, module in _stack_of(node).items():
            call = under_way.get(mark)
            if call is None:
                call = (module, turns[module])
                turns[module] += 1
            entered[mark] = call
            last[call] = node
        under_way = entered
    found: dict[Node, list[Call]] = {}
    for call, node in last.items():
        found.setdefault(node, []).append(call)
    return found


def _stack_of(node: Node) -> dict[str, str]:
    """The modules that a node was made in, outermost first, by marks that tell two calls of one apart."""
    stack = node.meta.get("nn_module_stack") or {}
    return {str(mark): _ROOT.sub("", str(path)) for mark, (path, _) in stack.items()}
