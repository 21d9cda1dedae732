"""What is known not to work yet, declared test by test.

A declared test still runs and must fail: once it passes, the run fails until its row is removed. A key is a test's id from
``tests/`` on, as ``fnmatch`` reads it with ``[`` and ``]`` taken literally.
"""

from __future__ import annotations

GAPS: dict[str, str] = {}

ON_REFERENCE: dict[str, str] = {}
"""Of the reference vendor only."""

ON_OPAQUE: dict[str, str] = {}
"""Of the opaque vendor only."""
