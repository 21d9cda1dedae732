"""What a rewritten file needs at its top: the definition of its device, PyTorch, and no import that nothing uses any more."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from flroute.scan.bindings import dotted_name

_Import = TypeVar("_Import", cst.Import, cst.ImportFrom)

DEFINITION = '{torch}.accelerator.current_accelerator(check_available=True) or {torch}.device("cpu")'
"""The device: the accelerator where there is one, and else the host."""

_Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


def with_header(old: str, new: cst.Module, *, torch: str, device: str) -> cst.Module:
    """A rewritten module with what its new code needs, and without the imports that only its old code needed.

    Args:
        old: the text as it was.
        new: after the rules.
        torch: what PyTorch is called.
        device: what the device is called.
    """
    used = names_used(new.code)
    unused = names_used(old) - used
    cleaned = cst.ensure_type(new.visit(_WithoutImports(unused)), cst.Module)
    body: list[_Statement] = list(cleaned.body)
    if device in used and defined_device(cleaned, torch) != device:
        at = _place(body, torch, device)
        if not any(torch in _bound_by(statement) for statement in body[:at]):
            body[at:at] = [
                _statement("import torch" if torch == "torch" else f"import torch as {torch}", blank=at > 0)
            ]
            at += 1
        body[at:at] = [_statement(f"{device} = {DEFINITION.format(torch=torch)}", blank=True)]
        if at + 1 < len(body):
            body[at + 1] = _with_a_blank_line(body[at + 1])
        used = used | {torch}
    if torch in used and not any(torch in _bound_by(statement) for statement in body):
        first = next(
            (i for i, s in enumerate(body) if not _is_docstring(s, i) and not _is_future(s)), len(body)
        )
        body[first:first] = [_statement("import torch", blank=first > 0)]
    return cleaned.with_changes(body=_without_empty(body))


def defined_device(module: cst.Module, torch: str) -> str | None:
    """The name that an earlier rewrite has given the device."""
    expected = cst.parse_expression(DEFINITION.format(torch=torch))
    for statement in module.body:
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Assign) and small.value.deep_equals(expected):
                return dotted_name(small.targets[0].target)
    return None


def names_used(code: str) -> set[str]:
    """Every name that is read outside import statements; names in ``__all__`` count."""
    texts = {ast.Name: "id", ast.Constant: "value"}
    found = (getattr(node, texts[type(node)]) for node in ast.walk(ast.parse(code)) if type(node) in texts)
    return {name for name in found if isinstance(name, str)}


class _WithoutImports(cst.CSTTransformer):
    """Takes out imports of names that nothing uses any more; ``import torch.cuda`` becomes ``import torch``."""

    def __init__(self, unused: set[str]) -> None:
        super().__init__()
        self.unused = unused

    def leave_Import(
        self, original_node: cst.Import, updated_node: cst.Import
    ) -> cst.Import | cst.Pass | cst.RemovalSentinel:
        kept = [alias for alias in updated_node.names if _local(alias) not in self.unused]
        kept = [
            alias.with_changes(name=cst.Name("torch"))
            if alias.asname is None and (dotted_name(alias.name) or "").startswith("torch.cuda")
            else alias
            for alias in kept
        ]
        return _with_names(updated_node, kept)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.Pass | cst.RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        return _with_names(updated_node, [a for a in updated_node.names if _local(a) not in self.unused])


def _with_names(node: _Import, kept: Sequence[cst.ImportAlias]) -> _Import | cst.Pass:
    if not kept:
        return cst.Pass()
    last = kept[-1]
    if not (isinstance(node, cst.ImportFrom) and node.lpar):
        last = last.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=[*kept[:-1], last])


def _without_empty(body: Sequence[_Statement]) -> list[_Statement]:
    """Without the `pass` that a removed import has left at the top level, its comments kept."""
    kept: list[_Statement] = []
    comments: list[cst.EmptyLine] = []
    for position, statement in enumerate(body):
        alone = isinstance(statement, cst.SimpleStatementLine) and all(
            isinstance(s, cst.Pass) for s in statement.body
        )
        if alone and position + 1 < len(body):
            lines = cst.ensure_type(statement, cst.SimpleStatementLine).leading_lines
            comments += [line for line in lines if line.comment is not None]
            continue
        if comments:
            statement = statement.with_changes(leading_lines=[*comments, *_leading(statement)])  # noqa: PLW2901
            comments = []
        kept.append(statement)
    return kept


def _place(body: Sequence[_Statement], torch: str, device: str) -> int:
    """After the first run of imports, or after that of PyTorch where it comes later; but before the first use."""
    end = 0
    for position, statement in enumerate(body):
        if not (_is_docstring(statement, position) or _imports_only(statement)):
            break
        end = position + 1
    imported = (
        i + 1
        for i, statement in enumerate(body)
        if torch in _bound_by(statement) and _imports_only(statement)
    )
    used = (i for i, statement in enumerate(body) if device in names_used(cst.Module([statement]).code))
    first_use = next(used, len(body))
    later = max(end, next(imported, 0))
    return later if later <= first_use else min(end, first_use)


def _imports_only(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        return all(isinstance(small, cst.Import | cst.ImportFrom | cst.Pass) for small in statement.body)
    if isinstance(statement, cst.Try):
        return all(_imports_only(inner) for inner in statement.body.body)
    return False


def _bound_by(statement: cst.CSTNode) -> set[str]:
    """The names that a statement at the top level imports."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return set()
    aliases: Iterable[cst.ImportAlias] = (
        alias
        for small in statement.body
        if isinstance(small, cst.Import | cst.ImportFrom) and not isinstance(small.names, cst.ImportStar)
        for alias in small.names
    )
    return {_local(alias) for alias in aliases}


def _local(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _is_docstring(statement: cst.CSTNode, position: int) -> bool:
    return position == 0 and m.matches(
        statement, m.SimpleStatementLine([m.Expr(m.SimpleString() | m.ConcatenatedString())])
    )


def _is_future(statement: cst.CSTNode) -> bool:
    return m.matches(statement, m.SimpleStatementLine([m.ImportFrom(module=m.Name("__future__"))]))


def _statement(code: str, *, blank: bool) -> cst.SimpleStatementLine:
    line = cst.ensure_type(cst.parse_statement(code), cst.SimpleStatementLine)
    return line.with_changes(leading_lines=[cst.EmptyLine(indent=False)] if blank else [])


def _leading(statement: cst.CSTNode) -> Sequence[cst.EmptyLine]:
    lines: Sequence[cst.EmptyLine] = getattr(statement, "leading_lines", ())
    return lines


def _with_a_blank_line(statement: _Statement) -> _Statement:
    lines = _leading(statement)
    if lines and lines[0].comment is None:
        return statement
    return statement.with_changes(leading_lines=[cst.EmptyLine(indent=False), *lines])
