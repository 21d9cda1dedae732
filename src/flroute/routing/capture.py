"""What was decided while somebody looked: in any thread, inside sessions and outside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flroute.routing.accounting import DecisionLog
from flroute.routing.router import Router
from flroute.routing.tallies import decisions_of
from flroute.settings import Settings
from flroute.vocabulary import Decision, Route


class Capture:
    """The decisions of several routers from now on. Counts stand still once it is closed.

    Args:
        routers: to be looked at; ``watch`` adds those made later.
        watch_kernels: whether host work that kernels do in secret is found, too; kernels are slower for it.
    """

    def __init__(self, routers: Iterable[Router], *, watch_kernels: bool) -> None:
        self._watch_kernels = watch_kernels
        self._settings: dict[Router, Settings] = {}
        self._since: dict[DecisionLog, int] = {}
        self._final: list[Decision] | None = None
        for router in routers:
            self.watch(router)

    def watch(self, router: Router) -> None:
        """Count this router's decisions, too."""
        self._since[router.log] = router.log.turn_page()
        self._settings[router] = router.settings
        if self._watch_kernels:
            router.settings = replace(router.settings, watch_kernels=True)
        router.invalidate()

    def close(self) -> None:
        """Count no further."""
        self._final = self.decisions
        for router, settings in self._settings.items():
            router.settings = settings
            router.invalidate()
        self._settings.clear()
        self._since.clear()

    @property
    def decisions(self) -> list[Decision]:
        """Every decision that served a call since, in the order first taken."""
        if self._final is not None:
            return self._final
        return decisions_of(tally for log, page in self._since.items() for tally in log.counted_since(page))

    @property
    def fallbacks(self) -> list[Decision]:
        """Those whose work the host did."""
        return [decision for decision in self.decisions if decision.route is Route.FALLBACK]
