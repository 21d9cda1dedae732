"""What the names of a file stand for, as far as its imports and definitions tell."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import libcst as cst


@dataclass
class Bindings:
    """Names of a file.

    Attributes:
        full: by local name what an import binds to it: ``F`` is ``torch.nn.functional``.
        modules: local names that ``import`` binds, in which case they are modules.
        ambiguous: local names that several imports bind to different things.
        parameters: of each function and class of the file, by its name.
        taken: every name that occurs.
        at_top: local names that an import at the file's top level binds.
        devices: names that are given a ``torch.device``.
    """

    full: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    ambiguous: set[str] = field(default_factory=set)
    parameters: dict[str, tuple[str, ...]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    at_top: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)

    def qualified(self, node: cst.CSTNode) -> str | None:
        """``torch.cuda.amp.autocast`` for whatever the file calls it; ``None`` for what no import explains."""
        dotted = dotted_name(node)
        if dotted is None:
            return None
        root, _, rest = dotted.partition(".")
        full = None if root in self.ambiguous else self.full.get(root)
        if full is None:
            return None
        return f"{full}.{rest}" if rest else full

    def is_other_module(self, node: cst.CSTNode) -> bool:
        """Whether an expression is a module that is not PyTorch's, or something in one."""
        dotted = dotted_name(node)
        root = "" if dotted is None else dotted.partition(".")[0]
        return root in self.modules and self.full[root].partition(".")[0] != "torch"


def dotted_name(node: cst.CSTNode) -> str | None:
    """``a.b.c`` as text; ``None`` for any other expression."""
    parts = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return ".".join([node.value, *reversed(parts)])


def bindings_of(tree: ast.Module) -> Bindings:
    """Read a file's imports, the parameters of what it defines, and every name."""
    found = Bindings()
    top = {id(statement) for statement in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _imported(found, node, at_top=id(node) in top)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _defined(found, node)
        elif isinstance(node, ast.Assign):
            _assigned(found, node)
        elif isinstance(node, ast.Name):
            found.taken.add(node.id)
    found.full.setdefault("torch", "torch")
    found.taken |= found.full.keys()
    return found


def _imported(found: Bindings, node: ast.Import | ast.ImportFrom, *, at_top: bool) -> None:
    if isinstance(node, ast.ImportFrom) and node.level:
        return  # of the package the file is in
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            local, full = alias.asname or alias.name, f"{node.module}.{alias.name}"
        else:
            local = alias.asname or alias.name.partition(".")[0]
            full = alias.name if alias.asname else local
            found.modules.add(local)
        if found.full.setdefault(local, full) != full:
            found.ambiguous.add(local)
        if at_top:
            found.at_top.add(local)


def _defined(found: Bindings, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
    found.taken.add(node.name)
    if not isinstance(node, ast.ClassDef):
        found.parameters.setdefault(node.name, _parameters(node))
        found.taken.update(_parameters(node))
        return
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            found.parameters[node.name] = _parameters(member)


def _assigned(found: Bindings, node: ast.Assign) -> None:
    if isinstance(node.value, ast.Call) and ast.unparse(node.value.func).rpartition(".")[2] == "device":
        found.devices |= {target.id for target in node.targets if isinstance(target, ast.Name)}


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return tuple(names[1:] if names[:1] in (["self"], ["cls"]) else names)
