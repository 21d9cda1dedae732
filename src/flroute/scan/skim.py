"""What the text alone tells, so that only what may have findings is walked: walking is most of what a scan costs."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import CodePosition, MetadataWrapper, PositionProvider

from flroute.scan.bindings import Bindings
from flroute.scan.cuda_names import CHOOSING, LIBRARIES

_WORDS = (
    r"cuda|nccl|nvtx|cudnn|cublas|\.cpu\(|\.to\(|map_location|GradScaler|torch\.autograd|cpp_extension|"
    + "|".join(re.escape(name.partition(".")[0]) for name in LIBRARIES)
    + "|"
    + "|".join(sorted({name.rpartition(".")[2] for name in CHOOSING}))
)
_IN_BYTES = re.compile(_WORDS.encode(), re.IGNORECASE)


def may_have_findings(content: bytes) -> bool:
    """Whether a file has any of the words that findings have; a vendor's missing kernels may be anywhere."""
    return _IN_BYTES.search(content) is not None


@dataclass(frozen=True)
class Skim:
    """Where in a file findings may be.

    Attributes:
        boring: identities of statements that have none.
        lines: by its identity, the line where a statement of the top level begins.
    """

    boring: frozenset[int]
    lines: dict[int, int]

    def places(self, module: cst.Module, wanted: set[int]) -> dict[int, CodePosition]:
        """Where nodes begin, by their identities: only the statements of the top level that have any are measured."""
        found: dict[int, CodePosition] = {}
        for statement in module.body:
            if id(statement) in self.boring:
                continue
            alone = module.with_changes(body=[statement], header=(), footer=())
            positions = MetadataWrapper(alone, unsafe_skip_copy=True).resolve(PositionProvider)
            above = self.lines[id(statement)] - positions[statement].start.line
            found |= {
                id(node): CodePosition(at.start.line + above, at.start.column)
                for node, at in positions.items()
                if id(node) in wanted
            }
        return found


def skim(source: str, tree: ast.Module, module: cst.Module, names: Bindings, *, everything: bool) -> Skim:
    """Find the statements that may have findings.

    Args:
        source: the text of the file.
        tree: as Python reads it, which knows lines.
        module: as libcst reads it, with the same statements.
        names: what the file's names stand for.
        everything: whether all may.
    """
    told = [
        local for local, full in names.full.items() if full in CHOOSING or _IN_BYTES.search(full.encode())
    ]
    pattern = re.compile("|".join([_WORDS, *(rf"\b{re.escape(local)}\b" for local in told)]), re.IGNORECASE)
    lines = source.splitlines() if "\f" not in source else re.split(r"\r\n|\r|\n", source)
    interesting = [number for number, line in enumerate(lines, 1) if everything or pattern.search(line)]
    found = _Finder(frozenset(interesting))
    found.look(module.body, tree.body, top=True)
    return Skim(frozenset(found.boring), found.lines)


class _Finder:
    """Goes through both readings of a file side by side: into functions and classes, not into other statements."""

    def __init__(self, interesting: frozenset[int]) -> None:
        self.interesting = interesting
        self.boring: set[int] = set()
        self.lines: dict[int, int] = {}

    def look(self, statements: Sequence[cst.CSTNode], read: Sequence[ast.stmt], *, top: bool = False) -> None:
        rest = iter(read)
        for statement in statements:
            count = len(statement.body) if isinstance(statement, cst.SimpleStatementLine) else 1
            group = [next(rest) for _ in range(count)]
            first = min(node.lineno for node in (group[0], *getattr(group[0], "decorator_list", ())))
            last = group[-1].end_lineno or first
            if top:
                self.lines[id(statement)] = group[0].lineno  # libcst, too, has decorators before it
            if self.interesting.isdisjoint(range(first, last + 1)):
                self.boring.add(id(statement))
            elif isinstance(statement, cst.FunctionDef | cst.ClassDef) and isinstance(
                statement.body, cst.IndentedBlock
            ):
                inside: list[ast.stmt] = group[0].body  # type: ignore[attr-defined]
                self.look(statement.body.body, inside)
