"""The heart of the lowering: lazily evaluated blocks, the fused loops that evaluate them, and the order that memory demands.

Rules that keep values right:
- A load is evaluated no later than the next op that may write memory, and never inside a loop or a branch that it is
  written outside of (``settle``).
- Within one loop, everything is read at an index before anything is written at it. A load and a store of one loop through
  the same root pointer at different addresses are not fused: the load is completed first.
- A loop covers the whole block when it also writes a kept value to scratch; only then is that scratch used by others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from flroute.reference_vendor.triton_cpu.emit import FunctionWriter, Index, LoopKind
from flroute.reference_vendor.triton_cpu.lowering.bounds import leading
from flroute.reference_vendor.triton_cpu.lowering.values import Affine, Node, scalar
from flroute.reference_vendor.triton_cpu.plan import Plan
from flroute.reference_vendor.triton_cpu.ttir import Block, Op, Value
from flroute.reference_vendor.triton_cpu.types import Type

Handler = Callable[["Lowerer", Op], None]
HANDLERS: dict[str, Handler] = {}
_NESTED = 4  # loops; more axes, as ``tl.sort`` has, are run through in one, of short code


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Register how ops of these names are lowered."""

    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


@dataclass
class _Collected:
    """What a loop over some roots would evaluate: nodes in evaluation order, and whether each only at the loop's index."""

    order: list[Node] = field(default_factory=list)
    identity: dict[Node, bool] = field(default_factory=dict)


class Lowerer:
    """State of lowering one kernel. The handlers of op families (the other files here) work on it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.write = FunctionWriter()
        self.nodes: dict[Value, Node] = {}
        self.buffers: list[int] = []  # bytes of each scratch buffer
        self.done: set[Op] = set()  # sinks that have been written
        self.assumed: frozenset[Node] = frozenset()  # masks known to hold in the loop being written
        self.refuted: frozenset[Node] = frozenset()  # masks known not to hold in it
        self.labels: dict[str, str] = {}
        self.carriers: dict[str, list[object]] = {}
        self.exit = "exit"
        self.assertions: list[str] = []  # the message of each, numbered from one
        self.status = self.allocate(
            8
        )  # at the start of scratch memory: the number of an assertion that failed
        self.declared: set[str] = set()
        self._pending: list[Node] = []
        self._memo: list[dict[tuple[Node, Index], str]] = [{}]
        self._through: dict[Node, str] = {}
        self._loop_index: Index | None = None
        self._homes: list[object] = [object()]
        self._forced: list[list[Node]] = [[]]

    # ops

    def run(self, ops: Iterable[Op]) -> None:
        """Lower ops in order."""
        for op in ops:
            handler = HANDLERS.get(op.name)
            if handler is None:
                raise op.refuse("this op is not supported")
            for value in [*op.operands, *op.results]:
                if not value.type.is_supported:
                    raise op.refuse(f"the type {value.type} is not supported")
            handler(self, op)

    def operands(self, op: Op) -> list[Node]:
        """The values of an op's operands."""
        return [self.nodes[value] for value in op.operands]

    def define(self, op: Op, node: Node, result: int = 0) -> None:
        """Bind an op's result; what the plan keeps, and every load, is remembered until it is evaluated."""
        node.home = self._homes[-1]
        node.sinks = self.plan.sinks.get(op, frozenset())
        node.keep = op in self.plan.kept
        if node.keep or node.is_load:
            self._pending.append(node)
        self.nodes[op.results[result]] = node

    def inline(self, blocks: list[Block], registers: Sequence[str]) -> list[str]:
        """Write a combining region on scalars in registers; what it returns."""
        block = blocks[0]
        for argument, register in zip(block.arguments, registers, strict=True):
            self.nodes[argument] = scalar(argument.type, register)
        self.run(block.ops[:-1])
        return [self.nodes[value].at(()) for value in block.ops[-1].operands]

    # scratch memory

    def allocate(self, size: int) -> str:
        """A new scratch buffer of so many bytes."""
        self.buffers.append(max(size, 1))
        return f"%buffer{len(self.buffers) - 1}"

    def in_buffer(self, value_type: Type, buffer: str) -> Node:
        """A block that is in scratch memory."""
        axes = frozenset(d for d, size in enumerate(value_type.shape) if size > 1)
        return Node(
            value_type,
            lambda index: self.read(value_type, buffer, index),
            axes=axes,
            buffer=buffer,
            home=self._homes[-1],
        )

    def read(self, value_type: Type, buffer: str, index: Index) -> str:
        """One element of a block in scratch memory."""
        address = self.write.element(value_type.storage, buffer, self.write.linear(value_type.shape, index))
        return self.load_element(value_type, address)

    def write_to(self, value_type: Type, buffer: str, index: Index, register: str) -> None:
        """Set one element of a block in scratch memory."""
        address = self.write.element(value_type.storage, buffer, self.write.linear(value_type.shape, index))
        self.store_element(value_type, register, address)

    def load_element(self, value_type: Type, address: str) -> str:
        """Memory to register: bfloat16 and float16 become the float32 they equal, a stored bool becomes one bit."""
        w = self.write
        loaded = w.load(value_type.storage, address, value_type.bytes)
        if value_type.element == "bf16":
            wide = w.op(f"zext i16 {loaded} to i32")
            return w.op(f"bitcast i32 {w.op(f'shl i32 {wide}, 16')} to float")
        if value_type.element == "f16":
            return w.op(f"fpext half {loaded} to float")
        return w.op(f"icmp ne i8 {loaded}, 0") if value_type.element == "i1" else loaded

    def store_element(self, value_type: Type, register: str, address: str) -> None:
        """Register to memory, the reverse of ``load_element``."""
        w = self.write
        if value_type.element == "bf16":
            register = w.bfloat16(register)
        elif value_type.element == "f16":
            register = w.op(f"fptrunc float {register} to half")
        elif value_type.element == "i1":
            register = w.op(f"zext i1 {register} to i8")
        w.store(value_type.storage, register, address, value_type.bytes)

    # evaluation

    def pull(self, node: Node, index: Index) -> str:
        """The register that holds a value at an index, evaluated at most once in a loop body."""
        if not node.type.shape:
            return node.at(())
        key = (node, index)
        for level in reversed(self._memo):
            if key in level:
                return level[key]
        if node in self.assumed or node in self.refuted:
            register = "true" if node in self.assumed else "false"
        else:
            register = self.read(node.type, node.buffer, index) if node.buffer else node.at(index)
        if node in self._through and index == self._loop_index:
            self.write_to(node.type, self._through[node], index, register)
        self._memo[-1][key] = register
        return register

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Registers named inside are not used outside."""
        self._memo.append({})
        yield
        self._memo.pop()

    @contextmanager
    def element(self, index: Index) -> Iterator[None]:
        """The body of a loop at ``index``."""
        outer, self._loop_index = self._loop_index, index
        with self.scope():
            yield
        self._loop_index = outer

    def collect(self, roots: Iterable[tuple[Node, bool]]) -> _Collected:
        """Everything that evaluating some roots would evaluate."""
        found = _Collected()

        def visit(node: Node, identity: bool) -> None:
            known = found.identity.get(node)
            if not node.type.shape or (known is not None and (known is False or identity)):
                return
            found.identity[node] = identity
            if not node.buffer:
                for source, same in node.inputs:
                    visit(source, identity and same)
            if known is None:
                found.order.append(node)

        for node, identity in roots:
            visit(node, identity)
        return found

    def prepare(
        self, roots: Sequence[tuple[Node, bool]], *, through: bool = True
    ) -> tuple[list[Node], list[Node]]:
        """Complete what the loop to come cannot: the kept nodes it writes through, and the masks of its loads."""
        while True:
            found = self.collect(roots)
            kept = [node for node in found.order if node.keep and not node.buffer]
            early = [node for node in kept if not (through and found.identity[node])]
            if not early:
                break
            self.force(early[0])
        masks = [
            node.mask
            for node in found.order
            if node.is_load and not node.buffer and node.mask and found.identity[node]
        ]
        return kept, list(dict.fromkeys(masks))

    @contextmanager
    def writing_through(self, kept: Sequence[Node]) -> Iterator[None]:
        """The loop written inside covers the whole block, and leaves these nodes in scratch memory."""
        outer = self._through
        self._through = {**outer, **{node: self.allocate(node.type.numel * node.type.bytes) for node in kept}}
        inner = self._through
        yield
        self._through = outer
        for node in kept:
            node.buffer = inner[node]
            self._forced[-1].append(node)

    def fused(
        self,
        shape: tuple[int, ...],
        roots: Sequence[Node],
        body: Callable[[Index], None],
        *,
        mask: Node | None = None,
        kind: LoopKind = "plain",
    ) -> None:
        """One loop nest over ``shape`` whose body pulls ``roots``; ``mask``: where it is false nothing need be done."""
        kept, masks = self.prepare([(node, True) for node in roots])
        with self.writing_through(kept):
            self.nest(shape, body, masks=masks, mask=None if kept else mask, known=mask, kind=kind)

    def force(self, node: Node) -> str:
        """Complete a node: its whole block in scratch memory."""
        if not node.buffer:
            buffer = self.allocate(node.type.numel * node.type.bytes)
            self.copy_into([(node, buffer)])
            node.buffer = buffer
            self._forced[-1].append(node)
        return node.buffer

    def copy_into(self, pairs: Sequence[tuple[Node, str]]) -> None:
        """Evaluate blocks of one shape in one loop: everything at an index is read before anything is written at it."""
        kept_before = [(node, node.keep) for node, _ in pairs]
        for node, _ in pairs:
            node.keep = False  # its own buffer is where it goes

        def body(index: Index) -> None:
            registers = [self.pull(node, index) for node, _ in pairs]
            for (node, buffer), register in zip(pairs, registers, strict=True):
                self.write_to(node.type, buffer, index, register)

        self.fused(pairs[0][0].type.shape, [node for node, _ in pairs], body)
        for node, keep in kept_before:
            node.keep = keep

    # loops

    def nest(
        self,
        shape: tuple[int, ...],
        body: Callable[[Index], None],
        *,
        masks: Sequence[Node] = (),
        mask: Node | None = None,
        known: Node | None = None,
        prefix: Index = (),
        kind: LoopKind = "plain",
    ) -> None:
        """Loops over the axes after ``prefix``; the innermost is split where its masks stop holding."""
        if len(prefix) == len(shape):
            with self.element(prefix):
                body(prefix)
        elif len(prefix) == len(shape) - 1:
            self._innermost(shape[-1], body, [*masks, *([known] if known else [])], mask, prefix, kind)
        elif len(shape) - len(prefix) > _NESTED:
            rest = shape[len(prefix) :]

            def one(position: str) -> None:
                index = (*prefix, *self.write.unravel(rest, position))
                with self.element(index):
                    body(index)

            self.write.loop("0", str(prod(rest)), one, kind="running" if kind == "plain" else kind)
        else:

            def inner(i: str) -> None:
                with self.scope():
                    self.nest(
                        shape,
                        body,
                        masks=masks,
                        mask=mask,
                        known=known,
                        prefix=(*prefix, i),
                        kind=kind,
                    )

            self.write.loop("0", str(shape[len(prefix)]), inner, kind=kind)

    def _innermost(
        self,
        size: int,
        body: Callable[[Index], None],
        masks: Sequence[Node],
        mask: Node | None,
        prefix: Index,
        kind: LoopKind,
    ) -> None:
        def run(start: str, stop: str, assumed: Iterable[Node] = (), refuted: Iterable[Node] = ()) -> None:
            outer = self.assumed, self.refuted
            self.assumed, self.refuted = self.assumed | {*assumed}, self.refuted | {*refuted}

            def one(i: str) -> None:
                with self.element((*prefix, i)):
                    body((*prefix, i))

            self.write.loop(start, stop, one, kind=kind)
            self.assumed, self.refuted = outer

        if size == 1:
            run("0", "1")
            return
        with self.scope():
            bounds = {
                node: bound for node in masks if (bound := leading(self, node, prefix, size)) is not None
            }
        if not bounds:
            run("0", str(size))
            return
        limit = str(size)
        for count, _ in bounds.values():
            limit = self.write.minimum(limit, count)
        run("0", limit, bounds)
        if mask in bounds and bounds[mask][1]:
            if bounds[mask][0] != limit:
                run(limit, bounds[mask][0], {mask})
            return
        same = len({count for count, _ in bounds.values()}) == 1
        run(
            limit,
            str(size),
            refuted={node for node, (_, nowhere_after) in bounds.items() if same and nowhere_after},
        )

    def affine_at(self, affine: Affine, index: Index) -> str:
        """The value of an affine form at an index."""
        total = affine.base
        for coefficient, i in zip(affine.coefficients, index, strict=True):
            total = self.write.add(total, self.write.mul(coefficient, i))
        return total

    # order

    def before_write(self, sink: Op, evaluated: Iterable[Node]) -> None:
        """Memory is about to be written: complete the loads that others still need, those of this loop along with it."""
        inside = set(evaluated)
        for node in self._pending:
            if node.is_load and not node.buffer and node.sinks - self.done - {sink}:
                node.keep = True
                if node not in inside:
                    self.force(node)

    def settle(self) -> None:
        """Control is about to branch: complete whatever is still needed, here, where it was written."""
        pending, self._pending = self._pending, []
        for node in pending:
            if not node.buffer and node.sinks - self.done:
                self.force(node)

    @contextmanager
    def region(self) -> Iterator[None]:
        """A region that may run never or many times: what it completes is not complete outside."""
        home = object()
        self._homes.append(home)
        self._forced.append([])
        outer, self._pending = self._pending, []
        with self.scope():
            yield
        self._pending = outer
        for node in self._forced.pop():
            if node.home is not home:
                node.buffer = ""
        self._homes.pop()
