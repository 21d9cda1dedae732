"""Reads the text of a Triton tensor IR module into typed objects: functions, regions, blocks, ops and values.

Triton's Python binding walks a module but does not show attributes (no constants, no predicates), so its text is
what is read. The text is regular but not stable between Triton's minor releases: ``versions.py`` says which are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from flroute.reference_vendor.triton_cpu.errors import UnsupportedKernelError
from flroute.reference_vendor.triton_cpu.types import Type, parse_type

_NAME = r"%[\w#$.\-]+"
_LOCATION = re.compile(r"\s*loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_SUCCESSOR = re.compile(r"\^(\w+)(?:\(([^)]*)\))?")
_RETURNS_NOTHING = frozenset(
    {
        "tt.store",
        "tt.print",
        "tt.assert",
        "tt.return",
        "tt.reduce.return",
        "tt.scan.return",
        "tt.map_elementwise.return",
        "scf.yield",
        "scf.condition",
        "cf.br",
        "cf.cond_br",
        "ttg.barrier",
        "tt.descriptor_store",
        "llvm.intr.assume",
    }
)


@dataclass(eq=False)
class Value:
    """What an op or a block argument defines; identity is what tells two apart."""

    name: str
    type: Type


@dataclass(eq=False)
class Block:
    """Straight-line ops; the last one may branch."""

    label: str
    arguments: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class Op:
    """One operation; ``text`` is the line it was read from, without types of regions, for its keywords."""

    name: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, str]
    text: str
    location: str
    regions: list[list[Block]] = field(default_factory=list)
    successors: list[tuple[str, list[Value]]] = field(default_factory=list)

    def refuse(self, why: str) -> UnsupportedKernelError:
        """The error that this op cannot be compiled, with its line."""
        return UnsupportedKernelError(self.name, why, self.location)


@dataclass(eq=False)
class Function:
    """A kernel: its arguments and blocks."""

    name: str
    arguments: list[Value]
    blocks: list[Block]


def split_top(text: str, separator: str = ",") -> list[str]:
    """Split where no bracket is open."""
    parts, depth, start = [], 0, 0
    text = text.replace("->", "  ")
    for position, character in enumerate(text):
        depth += (character in "<([{") - (character in ">)]}")
        if character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [part for part in [*parts, text[start:]] if part.strip()]


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return [parse_type(part) for part in split_top(text)]


def _after_last_colon(text: str) -> tuple[str, str]:
    """The op and its type signature, which follows the last `` : `` outside brackets."""
    depth, found = 0, -1
    plain = text.replace("->", "  ")
    for position in range(len(plain)):
        depth += (plain[position] in "<([{") - (plain[position] in ">)]}")
        if depth == 0 and plain.startswith(" : ", position):
            found = position
    return (text, "") if found < 0 else (text[:found], text[found + 3 :])


class _Locations:
    """``#loc`` definitions at the foot of the module, resolved to ``file:line`` of the outermost caller."""

    def __init__(self, lines: list[str]) -> None:
        found = (re.match(r"(#loc\d*) = loc\((.*)\)$", line) for line in lines)
        self._defined = {match[1]: match[2] for match in found if match}

    def resolve(self, text: str, depth: int = 0) -> str:
        """``file:line`` of a location."""
        place = re.match(r'"([^"]*)":(\d+):\d+', text)
        if place:
            return f"{place[1]}:{place[2]}"
        call = re.match(r"callsite\((.*) at (.*)\)$", text)
        if call and depth < 32:
            outer, inner = self.resolve(call[2], depth + 1), self.resolve(call[1], depth + 1)
            return outer or inner
        reference = re.search(r"#loc\d*", text)
        return (
            self.resolve(self._defined.get(reference[0], ""), depth + 1) if reference and depth < 32 else ""
        )


class Reader:
    """One pass over the lines, one scope of names for each region."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self._locations = _Locations(lines)
        self._lines = [line.strip() for line in lines]
        self._at = 0
        self._scopes: list[dict[str, Value]] = [{}]
        self._location = ""

    def functions(self) -> list[Function]:
        """Every function of the module."""
        found = []
        while self._at < len(self._lines):
            line = self._next()
            header = re.match(
                r"tt\.func (?:(\w+) )?@([\w.$]+)\((.*?)\)(?: -> .*?)?(?: attributes \{.*\})? \{$", line
            )
            if header:
                self._scopes.append({})
                arguments = [self._argument(part) for part in split_top(header[3])]
                blocks, _ = self._region()
                found.append(Function(header[2], arguments, blocks))
                self._scopes.pop()
            elif line.startswith("tt.func"):
                raise UnsupportedKernelError(
                    "tt.func", f"a function header that cannot be read: {line[:120]}", ""
                )
        return found

    def _next(self) -> str:
        line = self._lines[self._at]
        self._at += 1
        if line.startswith(("#", "//")):
            return ""
        places = _LOCATION.findall(line)
        if places and not line.startswith("^"):
            self._location = self._locations.resolve(places[-1].strip()[4:-1]) or self._location
        return re.sub(r"\s*// pred.*$", "", _LOCATION.sub("", line)).strip()

    def _define(self, name: str, value_type: Type) -> Value:
        value = Value(name, value_type)
        self._scopes[-1][name] = value
        return value

    def _argument(self, text: str) -> Value:
        name, _, rest = text.strip().partition(":")
        return self._define(name.strip(), parse_type(re.sub(r"\s*\{.*\}\s*$", "", rest)))

    def _value(self, name: str) -> Value:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
            if name + "#0" in scope:
                return scope[name + "#0"]
        raise UnsupportedKernelError(name, "a value that is used before it is defined", self._location)

    def _region(self) -> tuple[list[Block], str]:
        """Blocks up to the line that closes the region, and that line."""
        self._scopes.append({})
        blocks = [Block("entry")]
        while True:
            line = self._next()
            if line.startswith("}"):
                break
            if line.startswith("^"):
                header = re.match(r"\^(\w+)(?:\((.*)\))?:", line)
                if header is None:
                    raise UnsupportedKernelError("block", f"cannot read {line!r}", self._location)
                arguments = [self._argument(part) for part in split_top(header[2] or "")]
                if not blocks[-1].ops and len(blocks) == 1:
                    blocks = []
                blocks.append(Block(header[1], arguments))
            elif line:
                blocks[-1].ops.append(self._op(line))
        self._scopes.pop()
        return blocks, line

    def _body(self) -> tuple[list[Block], str]:
        """A region of ``scf``; where it yields nothing, the text leaves the yield out."""
        blocks, closing = self._region()
        if not blocks[-1].ops or blocks[-1].ops[-1].name not in {"scf.yield", "scf.condition"}:
            blocks[-1].ops.append(Op("scf.yield", [], [], {}, "scf.yield", self._location))
        return blocks, closing

    def _op(self, line: str) -> Op:
        names, body = self._result_names(line)
        match = re.match(r'"?([\w.]+)"?', body)
        if match is None:
            raise UnsupportedKernelError("line", f"cannot read {line!r}", self._location)
        op = Op(match[1], [], [], _attributes(body), body, self._location)
        result_types = self._with_regions(op, body) if body.endswith("{") else self._plain(op, body)
        if len(names) != len(result_types):
            raise op.refuse(f"{len(names)} results but {len(result_types)} types in {line!r}")
        op.results = [self._define(name, result) for name, result in zip(names, result_types, strict=True)]
        return op

    @staticmethod
    def _result_names(line: str) -> tuple[list[str], str]:
        match = re.match(rf"((?:{_NAME}(?::\d+)?(?:, )?)+) = (.*)$", line)
        if match is None:
            return [], line
        names: list[str] = []
        for part in match[1].split(", "):
            name, _, count = part.partition(":")
            names += [f"{name}#{i}" for i in range(int(count))] if count else [name]
        return names, match[2]

    def _operands(self, text: str) -> list[Value]:
        return [self._value(name) for name in re.findall(_NAME, _QUOTED.sub("", text))]

    def _plain(self, op: Op, body: str) -> list[Type]:
        if op.name in {"cf.br", "cf.cond_br"}:
            first = body.find("^")
            op.operands = self._operands(body[:first])
            for label, arguments in _SUCCESSOR.findall(body):
                op.successors.append((label, self._operands(arguments)))
            return []
        op.operands = self._operands(body)
        if op.name in _RETURNS_NOTHING:
            return []
        head, signature = _after_last_colon(body)
        return _result_types(op, head, signature)

    def _with_regions(self, op: Op, body: str) -> list[Type]:
        if op.name == "scf.for":
            return self._for(op, body)
        if op.name == "scf.while":
            return self._while(op, body)
        if op.name == "scf.if":
            op.operands = self._operands(body)
            then, closing = self._body()
            op.regions = [then]
            if closing.startswith("} else"):
                op.regions.append(self._body()[0])
            return _types(body[body.index("->") + 2 : -1]) if "->" in body else []
        if body.endswith("({"):  # tt.reduce, tt.scan, tt.map_elementwise: their types follow the region
            op.operands = self._operands(body)
            blocks, closing = self._region()
            op.regions = [blocks]
            return _types(closing[closing.index("->") + 2 :])
        raise op.refuse("an op with a region of its own that this compiler does not know")

    def _for(self, op: Op, body: str) -> list[Type]:
        match = re.match(
            rf"scf\.for (unsigned )?({_NAME}) = ({_NAME}) to ({_NAME}) step ({_NAME})"
            r"(?: iter_args\((.*?)\) -> \((.*)\))?\s*(?:: (\w+))?\s*\{$",
            body,
        )
        if match is None:
            raise op.refuse(f"cannot read the loop {body!r}")
        carried = [part.strip().split(" = ") for part in match[6].split(",")] if match[6] else []
        types = _types(match[7]) if match[7] else []
        op.attributes["unsigned"] = "true" if match[1] else ""
        op.operands = [self._value(match[i]) for i in (3, 4, 5)] + [
            self._value(start) for _, start in carried
        ]
        self._scopes.append({})
        arguments = [self._define(match[2], op.operands[0].type)]
        arguments += [self._define(name, kind) for (name, _), kind in zip(carried, types, strict=True)]
        blocks, _ = self._body()
        self._scopes.pop()
        blocks[0].arguments = arguments
        op.regions = [blocks]
        return types

    def _while(self, op: Op, body: str) -> list[Type]:
        match = re.match(r"scf\.while (?:\((.*?)\) )?: \((.*?)\) -> (.*) \{$", body)
        if match is None:
            raise op.refuse(f"cannot read the loop {body!r}")
        carried = [part.strip().split(" = ") for part in match[1].split(",")] if match[1] else []
        op.operands = [self._value(start) for _, start in carried]
        self._scopes.append({})
        arguments = [
            self._define(name, kind) for (name, _), kind in zip(carried, _types(match[2]), strict=True)
        ]
        before, _ = self._body()
        self._scopes.pop()
        before[0].arguments = arguments
        after, _ = self._body()
        op.regions = [before, after]
        return _types(match[3])


def _attributes(body: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in re.findall(r"<?\{([^{}]*)\}>?", body):
        for part in split_top(text):
            name, equals, value = part.partition("=")
            if equals:
                found[name.strip()] = value.split(" : ")[0].strip()
    return found


def _result_types(op: Op, head: str, signature: str) -> list[Type]:
    """Result types by the op's own way of writing its signature."""
    if "->" in signature:
        result = _types(signature[signature.rindex("->") + 2 :])
        return result * 2 if op.name == "tt.split" and len(result) == 1 else result
    if " to " in signature:
        return [parse_type(signature.split(" to ")[1])]
    if not signature and head.endswith(("true", "false")):
        return [Type((), "i1")]
    listed = _types(signature)
    if op.name in {"arith.cmpi", "arith.cmpf"}:
        return [listed[0].with_element("i1")]
    if op.name == "tt.load":
        return [listed[0].pointed]
    if op.name == "tt.addptr":
        return listed[:1]
    if op.name == "tt.unsplat":
        return [listed[0].with_shape(())]
    return listed[-1:]


def read(text: str) -> Function:
    """The module's one kernel."""
    functions = Reader(text).functions()
    if len(functions) != 1:
        names = ", ".join(function.name for function in functions)
        raise UnsupportedKernelError(
            "tt.func",
            f"one kernel is compiled at a time, the module has: {names}",
            "",
        )
    return functions[0]
