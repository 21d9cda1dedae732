"""``flroute doctor``: what is installed, what failed to load, what the devices compute, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from flroute.doctor import drift, environment, process, trials, vendors
from flroute.doctor.checks import Check, Diagnosis, State
from flroute.errors import FlrouteError

__all__ = ["Check", "Diagnosis", "State", "diagnose"]

Part = Callable[[], Iterator[Check]]

_PARTS: dict[str, Part] = {
    "requirements": environment.requirements,
    "versions": environment.versions,
    "host": environment.host,
    "settings": environment.settings,
    "device": process.device_slot,
    "autoload": process.autoload,
    "cures": process.cures,
    "vendors": vendors.loaded,
}


def diagnose(*, with_trials: bool = True, locked: bool = False) -> Diagnosis:
    """Look at everything; what is broken is red, and does not stop the looking.

    Args:
        with_trials: whether to compute something on every device, in a process of its own.
        locked: whether this environment must be the one in ``flroute.lock``; so it must where the setting says it.

    Example:
        >>> from flroute.doctor import diagnose
        >>> "torch" in [check.about for check in diagnose(with_trials=False).checks]
        True
    """
    parts: dict[str, Part] = {**_PARTS, "lock": partial(drift.since_lock, asked=locked)}
    if with_trials:
        parts["trials"] = trials.in_another_process
    return Diagnosis(tuple(check for about, part in parts.items() for check in _looked_at(about, part)))


def _looked_at(about: str, part: Part) -> Iterator[Check]:
    try:
        yield from part()
    except FlrouteError as error:
        yield Check(
            about, State.RED, str(error), "correct what the message names, then run flroute doctor again"
        )
