"""Flags of ``torch.backends``."""

from __future__ import annotations

import torch

flags_may_be_set = torch.backends.__allow_nonbracketed_mutation
"""A context in which they may be set, even after ``torch.backends.disable_global_flags()``."""
