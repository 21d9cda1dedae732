"""One walk over a file, which finds what is device-bound and writes the device-neutral code at the same time."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import libcst as cst
from libcst.metadata import CodePosition

from flroute.scan import call_rules, name_rules, string_rules
from flroute.scan.bindings import Bindings, bindings_of, dotted_name
from flroute.scan.findings import FileScan, Finding, Need
from flroute.scan.headers import defined_device, with_header
from flroute.scan.look import DEVICE_NAMES, Hit, Look, source_of
from flroute.scan.skim import skim

Rule = Callable[[Any, Any, Look], "Hit | cst.CSTNode | None"]
"""A rule looks at an expression, at what has become of it so far, and around. It answers with a hit, or with new code alone where
the parts of the expression have been found already."""

RULES: dict[type[cst.CSTNode], tuple[Rule, ...]] = {
    cst.SimpleString: (string_rules.simple_string,),
    cst.FormattedString: (string_rules.formatted_string,),
    cst.Comparison: (string_rules.comparison,),
    cst.IfExp: (string_rules.conditional,),
    cst.Call: (
        call_rules.moved_to_cuda,
        call_rules.copied_to_host,
        call_rules.moved,
        call_rules.mixed_precision,
        call_rules.seeded,
        call_rules.tensor_of_a_type,
        call_rules.marked_range,
        call_rules.extension,
        call_rules.chooses_device,
        call_rules.without_kernel,
        call_rules.old_profile,
        string_rules.starts_with,
        call_rules.device_object,
        name_rules.by_name,
    ),
    cst.Arg: (call_rules.map_location,),
    cst.Attribute: (
        name_rules.reference,
        name_rules.is_cuda,
        name_rules.profiler_column,
        name_rules.profiler_activity,
    ),
    cst.Name: (name_rules.reference,),
    cst.UnaryOperation: (name_rules.not_on_cuda,),
    cst.List: (name_rules.profiler_activities,),
    cst.Tuple: (name_rules.profiler_activities,),
    cst.Set: (name_rules.profiler_activities,),
    cst.Decorator: (name_rules.decorator,),
}
_IMPORT_RULES: dict[type[cst.CSTNode], Rule] = {
    cst.Import: name_rules.imported,
    cst.ImportFrom: name_rules.imported_from,
}
_LONGEST_SOURCE = 60


def scan_source(source: str, path: str, *, lacking: frozenset[str] = frozenset()) -> FileScan:
    r"""Find what is device-bound in a file's text, and what it would be without.

    Args:
        source: the text.
        path: for the findings.
        lacking: ops for which the vendor asked about has no kernel, as ``linalg_eig``.

    Raises:
        SyntaxError: it is no Python of this interpreter's.
        RecursionError: it is nested too deeply.

    Example:
        >>> found = scan_source("import torch\nx = torch.ones(2).cuda()\n", "train.py")
        >>> [(f.line, f.kind.value, f.need.value) for f in found.findings]
        [(2, 'cuda-method', '--fix')]
        >>> print(found.fixed, end="")
        import torch
        <BLANKLINE>
        DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        <BLANKLINE>
        x = torch.ones(2).to(DEVICE)
    """
    tree = ast.parse(source)
    try:
        module = cst.parse_module(source)
    except cst.ParserSyntaxError as error:
        raise SyntaxError(error.message, (path, error.raw_line, error.raw_column, None)) from error
    names = bindings_of(tree)
    look = Look(names, "", _seeds(tree, names), lacking)
    look.device = defined_device(module, look.torch) or next(n for n in DEVICE_NAMES if n not in names.taken)
    skimmed = skim(source, tree, module, names, everything=bool(lacking))
    rewriter = _Rewriter(look, skimmed.boring)
    new = module.visit(rewriter)
    rewriter.look_at_imports()
    places = skimmed.places(module, {id(hit.at or node) for node, hit in rewriter.hits})
    findings = {_finding(path, node, hit, places[id(hit.at or node)]): None for node, hit in rewriter.hits}
    fixed = None
    if any(hit.need is Need.FIX for _, hit in rewriter.hits):
        fixed = with_header(source, new, torch=look.torch, device=look.device).code
    return FileScan(path, tuple(sorted(findings, key=lambda f: (f.line, f.column))), fixed)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, look: Look, boring: frozenset[int]) -> None:
        super().__init__()
        self.look = look
        self.boring = boring
        self.hits: list[tuple[cst.CSTNode, Hit]] = []
        self._imports: list[tuple[cst.CSTNode, list[cst.CSTNode]]] = []
        self._classes: list[int] = []  # how many hits there were when each class began

    def on_visit(self, node: cst.CSTNode) -> bool:
        if type(node) in _IMPORT_RULES:
            self._imports.append((node, list(self.look.above)))
            return False
        if isinstance(node, cst.ClassDef):
            self._classes.append(len(self.hits))
        self.look.above.append(node)
        return id(node) not in self.boring

    def on_leave(self, original_node: cst.CSTNode, updated_node: Any) -> Any:
        if type(original_node) in _IMPORT_RULES:
            return updated_node
        self.look.above.pop()
        if isinstance(original_node, cst.ClassDef):
            inside = [hit for _, hit in self.hits[self._classes.pop() :]]
            self._keep(
                original_node, name_rules.autograd_function(original_node, updated_node, self.look, inside)
            )
        for rule in RULES.get(type(original_node), ()):
            answer = rule(original_node, updated_node, self.look)
            if isinstance(answer, cst.CSTNode):
                return answer
            self._keep(original_node, answer)
            if answer is not None and answer.instead is not None:
                return answer.instead
        return updated_node

    def look_at_imports(self) -> None:
        """Imports come last: whether one can go depends on what became of its uses."""
        for node, above in self._imports:
            self.look.above[:] = above
            answer = _IMPORT_RULES[type(node)](node, node, self.look)
            if isinstance(answer, Hit):
                self._keep(node, answer)

    def _keep(self, node: cst.CSTNode, hit: Hit | None) -> None:
        if hit is None:
            return
        self.hits.append((node, hit))
        root = (dotted_name(node.func if isinstance(node, cst.Call) else node) or "").partition(".")[0]
        self.look.uses.setdefault(root, []).append(hit.need)


def _finding(path: str, node: cst.CSTNode, hit: Hit, at: CodePosition) -> Finding:
    advice = hit.advice or ("" if hit.instead is None else _short(source_of(hit.instead)))

    source = f"class {node.name.value}" if isinstance(node, cst.ClassDef) else _short(source_of(node))
    return Finding(path, at.line, at.column + 1, hit.kind, hit.need, hit.runs, source, advice)


def _short(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= _LONGEST_SOURCE else line[: _LONGEST_SOURCE - 1] + "…"


def _seeds(tree: ast.Module, names: Bindings) -> frozenset[str]:
    """The arguments of every ``torch.manual_seed`` of a file."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1)
    return frozenset(
        ast.unparse(call.args[0])
        for call in calls
        if names.qualified(cst.parse_expression(ast.unparse(call.func))) == "torch.manual_seed"
    )
