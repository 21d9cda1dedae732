"""What the doctor sees of ``flroute.lock``: whether this is still the environment it describes."""

from __future__ import annotations

from collections.abc import Iterator

from flroute.doctor.checks import Check, State
from flroute.errors import LockError


def since_lock(*, asked: bool) -> Iterator[Check]:
    """Each thing that drifted; nothing where neither the caller nor the setting ``locked`` asks."""
    from flroute import lockfile
    from flroute.settings import load_settings

    if not (asked or load_settings().locked):
        return
    try:
        path = lockfile.nearest()
        locked = lockfile.read(path)
    except LockError as error:
        yield Check("lock", State.RED, str(error), "write it where the tests pass: flroute lock")
        return
    drifts = lockfile.compare(locked, lockfile.here())
    for drift in drifts:
        yield Check(
            "lock",
            State.RED,
            str(drift),
            f"{drift.remedy}; or flroute lock, if this is the environment you want",
        )
    if not drifts:
        yield Check("lock", State.GREEN, f"this is the environment in {path}")
