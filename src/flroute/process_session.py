"""``FLROUTE_SESSION=1``: a session for a whole process, which nothing in its code opens.

``flroute run`` sets it for the processes that a script starts.
"""

from __future__ import annotations

import atexit
import warnings

from flroute.errors import FlrouteError
from flroute.session import enable
from flroute.settings import load_settings


def open_if_asked() -> None:
    """Open one that ends with the process; where that fails, a warning says why, for importing PyTorch does not fail for it."""
    try:
        if not load_settings().session:
            return
        session = enable().start()
    except FlrouteError as error:
        warnings.warn(f"FLROUTE_SESSION=1 opened no session: {error}", RuntimeWarning, stacklevel=2)
        return
    atexit.register(session.close)
