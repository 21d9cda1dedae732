"""What a rule sees of the code around an expression, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from flroute.scan.bindings import Bindings
from flroute.scan.findings import Kind, Need

DEVICE_NAMES = ("DEVICE", "ACCELERATOR", "TORCH_DEVICE", "NEUTRAL_DEVICE")
"""What the device is called in a rewritten file: the first that is free."""


@dataclass(frozen=True)
class Hit:
    """What a rule says about an expression.

    Attributes:
        kind: what is device-bound about it.
        need: who has to act.
        advice: what to do; for a rewrite it may be left out, since the new code says it.
        instead: the new code, if there is one.
        at: what of the expression the finding points at; the whole unless given.
        runs: `flroute run` redirects it.
    """

    kind: Kind
    need: Need = Need.FIX
    advice: str = ""
    instead: cst.CSTNode | None = None
    at: cst.CSTNode | None = None
    runs: bool = True


@dataclass
class Look:
    """A file during the walk.

    Attributes:
        names: what its names stand for.
        device: what its device is, or would be, called.
        seeds: arguments of every ``torch.manual_seed`` in it, as code.
        lacking: ops, as ``linalg_eig``, for which the vendor asked about has no kernel.
        above: what the present node stands in, outermost first.
        uses: by local name of an import, who has to act on each use of it.
    """

    names: Bindings
    device: str
    seeds: frozenset[str]
    lacking: frozenset[str]
    above: list[cst.CSTNode] = field(default_factory=list)
    uses: dict[str, list[Need]] = field(default_factory=dict)

    @property
    def torch(self) -> str:
        """What PyTorch is called in the file."""
        return next(
            (
                local
                for local, full in self.names.full.items()
                if full == "torch" and local in self.names.at_top
            ),
            "torch",
        )

    @property
    def parent(self) -> cst.CSTNode | None:
        """What the present node stands in."""
        return self.above[-1] if self.above else None

    def qualified(self, node: cst.CSTNode) -> str:
        """The full name of an expression, empty if it has none."""
        return self.names.qualified(node) or ""

    def code(self, template: str, **parts: cst.BaseExpression) -> cst.BaseExpression:
        """New code, in which ``{torch}`` and ``{device}`` stand for what they are called here, other names for expressions."""
        texts = {name: source_of(part) for name, part in parts.items()}
        return cst.parse_expression(template.format(torch=self.torch, device=self.device, **texts))


def source_of(node: cst.CSTNode) -> str:
    """The code of a node."""
    return cst.Module(body=[]).code_for_node(node)


def in_a_test(node: cst.CSTNode, parent: cst.CSTNode | None) -> bool:
    """Whether an expression stands where a comparison needs no parentheses."""
    if isinstance(parent, cst.If | cst.While | cst.Assert | cst.IfExp):
        return parent.test is node
    return isinstance(
        parent, cst.Assign | cst.Return | cst.Arg | cst.AnnAssign | cst.BooleanOperation | cst.UnaryOperation
    )


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """An expression in parentheses of its own."""
    return node.with_changes(lpar=[*node.lpar, cst.LeftParen()], rpar=[*node.rpar, cst.RightParen()])


def keyword(args: Sequence[cst.Arg], name: str) -> cst.Arg | None:
    """The argument that is passed by a name."""
    return next((arg for arg in args if arg.keyword is not None and arg.keyword.value == name), None)
