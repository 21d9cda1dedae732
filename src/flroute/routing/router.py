"""The router: finds the route of each call once per signature, and runs it.

``Router`` maps an op to a handler, made on first use. A handler keeps plans by the dtypes and devices of the tensor
arguments; a plan is a plain callable with the decision's counters inside it. A change of policy or of the registry
empties the table, so it is seen at once.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from flroute.routing import transfers
from flroute.routing.accounting import Counts, DecisionLog
from flroute.routing.device_ops import DEVICE_OPS, view_handler
from flroute.routing.plans import ComputeHandler, Plan
from flroute.routing.recording import Recordings, recorded_plan
from flroute.routing.schema import OpFacts, facts_of
from flroute.routing.tallies import Choice, shapes_in
from flroute.settings import Settings
from flroute.vocabulary import Reason, Rejection, Route


class Router:
    """Routes calls under one set of settings, and accounts for them in one log."""

    def __init__(self, settings: Settings, log: DecisionLog) -> None:
        self.settings, self.log = settings, log
        self.table: dict[Any, Plan] = {}
        self.mode_table: dict[Any, Plan] = {}
        self.recordings: Recordings = ()

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Serve one call of ``op``."""
        handler = self.table.get(op)
        if handler is None:
            handler = self.handler(op)
        return handler(args, kwargs)

    def handler(self, op: Any) -> Plan:
        """The handler of ``op``, made on first use."""
        handler = self.table.get(op)
        if handler is None:
            handler = self.table[op] = self._make_handler(facts_of(op))
        return handler

    def invalidate(self) -> None:
        """Forget every resolved route: the settings or the registry changed."""
        self.table.clear()
        self.mode_table.clear()

    def bumps_no_version(self, op: Any) -> bool:
        """Whether a dispatch mode must bump the version counters that ``op`` writes."""
        return facts_of(op).bumps_no_version

    def _make_handler(self, facts: OpFacts) -> Plan:
        special = DEVICE_OPS.get(facts.name)
        if special is not None:
            return special(self, facts)
        if facts.is_metadata:
            return view_handler(self, facts)
        return ComputeHandler(self, facts).quickest()

    def counts(
        self,
        facts: OpFacts,
        route: Route,
        device: str,
        reason: Reason,
        dtypes: tuple[str, ...],
        *,
        kernel: str | None = None,
        detail: str = "",
        rejected: tuple[Rejection, ...] = (),
    ) -> Counts:
        """The counters of a decision for calls of these dtypes."""
        choice = Choice(facts.name, route, kernel, device, reason, detail, rejected)
        return Counts(self.log, choice, dtypes)

    def counted(self, counts: Counts, plan: Plan) -> Plan:
        """``plan``, counting each call that succeeds; timed if the session times.

        Args:
            counts: the counters.
            plan: what is counted.
        """
        if not self.settings.timing:

            def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                shapes = shapes_in(args, kwargs)  # before the call, which may resize
                result = plan(args, kwargs)
                counts(shapes).tick()
                return result

            return run
        clock = time.perf_counter

        def run_timed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            shapes = shapes_in(args, kwargs)
            start = clock()
            result = plan(args, kwargs)
            seconds = clock() - start
            tally = counts(shapes)
            tally.seconds = (tally.seconds or 0.0) + seconds
            tally.tick()
            return result

        return run_timed

    def recorded(self, counts: Counts, plan: Plan) -> Plan:
        """``plan``, recorded while somebody records; for work that is not a vendor kernel's, which is recorded by itself."""
        return recorded_plan(plan, counts.choice, counts.dtypes, self.recordings)

    def store(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy one device tensor into another on the same device: what a kernel computed, to where it belongs."""
        if transfers.moves_within_memory(source, target):
            transfers.move(source, target, transfers.Moved())
        else:
            self.handler(torch.ops.aten.copy_.default)((target, source), {})
