"""Where the numbers drift: how far a device's values are from a reference's, and how far they may be."""

from __future__ import annotations
