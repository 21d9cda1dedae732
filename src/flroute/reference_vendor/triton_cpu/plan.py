"""What is decided about a kernel before any code is written: which blocks are kept in memory and which stores share a loop.

Block-valued ops are evaluated lazily, inside the loop of whatever consumes them at last (its *sink*: a store, a
reduction, a product, a loop's carried value). An op that is expensive is *kept*, that is written to scratch memory once,
where it would otherwise be evaluated again: for several sinks, or for several indices of one (under a broadcast).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from flroute.reference_vendor.triton_cpu.ttir import Block, Function, Op, Value

_SHAPE_OPS = frozenset({
    "tt.splat", "tt.expand_dims", "tt.broadcast", "tt.trans", "tt.reshape", "tt.join", "tt.split", "tt.cat", "tt.make_range",
    "arith.constant", "tt.gather",
})  # fmt: skip
_POINTWISE_OPS = frozenset({
    "tt.addptr", "tt.bitcast", "tt.fp_to_fp", "tt.clampf", "tt.mulhiui", "tt.ptr_to_int", "tt.int_to_ptr", "tt.precise_sqrt",
    "tt.precise_divf", "tt.extern_elementwise",
})  # fmt: skip
_COSTLY = frozenset({
    "tt.load", "arith.divf", "arith.remf", "arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "tt.precise_sqrt",
    "tt.precise_divf", "tt.extern_elementwise",
})  # fmt: skip
_CHEAP_MATH = frozenset({"math.absf", "math.absi", "math.floor", "math.ceil", "math.fma"})
_MANY_TO_ONE = frozenset({"tt.broadcast", "tt.reshape", "tt.cat", "tt.gather", "tt.join", "tt.split"})
_LONG = 16  # ops; a longer chain with several sinks is kept too


def is_block(op: Op) -> bool:
    return bool(op.results) and bool(op.results[0].type.shape)


def is_lazy(op: Op) -> bool:
    """Whether the op is evaluated element by element in the loop of its consumer."""
    named = (
        op.name in _SHAPE_OPS
        or op.name in _POINTWISE_OPS
        or op.name == "tt.load"
        or op.name.startswith(("arith.", "math."))
    )
    return named and is_block(op)


def is_costly(op: Op) -> bool:
    return op.name in _COSTLY or (op.name.startswith("math.") and op.name not in _CHEAP_MATH)


def walk(blocks: list[Block]) -> Iterator[tuple[Block, Op]]:
    """Every op of the blocks and of their regions, in program order."""
    for block in blocks:
        for op in block.ops:
            yield block, op
            for region in op.regions:
                yield from walk(region)


@dataclass
class Plan:
    """``sinks`` of each lazy op, those ``kept``, and the ``groups`` of stores keyed by their last member."""

    sinks: dict[Op, frozenset[Op]] = field(default_factory=dict)
    kept: set[Op] = field(default_factory=set)
    groups: dict[Op, list[Op]] = field(default_factory=dict)
    leader: dict[Op, Op] = field(default_factory=dict)
    uses: dict[Value, int] = field(default_factory=dict)


def make_plan(function: Function) -> Plan:
    plan = Plan()
    ops = [op for _, op in walk(function.blocks)]
    users: dict[Value, list[Op]] = {}
    for op in ops:
        for value in [*op.operands, *(value for _, values in op.successors for value in values)]:
            users.setdefault(value, []).append(op)
    plan.uses = {value: len(found) for value, found in users.items()}
    _group_stores(function.blocks, plan)
    crossing: set[Op] = set()  # evaluated at many indices, or at indices that are not contiguous
    for op in reversed(ops):
        if not is_lazy(op):
            continue
        sinks: set[Op] = set()
        for user in (user for result in op.results for user in users.get(result, ())):
            if not is_lazy(user):
                sinks.add(plan.leader.get(user, user))
            elif user in plan.kept:
                sinks.add(user)
            else:
                sinks |= plan.sinks[user]
            if user.name in _MANY_TO_ONE or (is_lazy(user) and user in crossing and user not in plan.kept):
                crossing.add(op)
        plan.sinks[op] = frozenset(sinks)
        if is_costly(op) and (len(sinks) > 1 or op in crossing):
            plan.kept.add(op)
    _keep_long_chains(ops, plan)
    return plan


def _group_stores(blocks: list[Block], plan: Plan) -> None:
    """Consecutive stores of one shape share a loop; anything that touches memory or branches ends the group."""
    for block in blocks:
        group: list[Op] = []
        for op in block.ops:
            for region in op.regions:
                _group_stores(region, plan)
            if op.name == "tt.store":
                if group and group[0].operands[0].type.shape != op.operands[0].type.shape:
                    _close(group, plan)
                    group = []
                group.append(op)
            elif op.name == "tt.load" or not (
                is_lazy(op) or op.name.startswith(("arith.", "math.", "tt.addptr", "tt.splat", "tt.bitcast"))
            ):
                _close(group, plan)
                group = []
        _close(group, plan)


def _close(group: list[Op], plan: Plan) -> None:
    if group:
        plan.groups[group[-1]] = group
        plan.leader.update(dict.fromkeys(group, group[0]))


def _keep_long_chains(ops: list[Op], plan: Plan) -> None:
    """A long chain of cheap ops is worth keeping as well, and the code for it is not written again for every sink."""
    made_by = {result: op for op in ops for result in op.results}
    weight: dict[Op, int] = {}
    for op in ops:
        if not is_lazy(op):
            continue
        inputs = [made_by[value] for value in op.operands if value in made_by and is_lazy(made_by[value])]
        weight[op] = 1 + sum(0 if source in plan.kept else weight[source] for source in inputs)
        if weight[op] > _LONG and len(plan.sinks[op]) > 1 and op.results[0].type.element != "ptr":
            plan.kept.add(op)
