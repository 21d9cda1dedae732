"""``alias=("cuda",)``: inside a session cuda means its device, and at the end nothing of it is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from flroute.cuda_alias.advice import advise
from flroute.cuda_alias.alias import Alias
from flroute.cuda_alias.patches import in_force
from flroute.cuda_alias.table import patches as patches_of_pytorch
from flroute.cuda_alias.traced import hear_of_cuda
from flroute.device.table import Device
from flroute.errors import AliasError

__all__ = ["Alias", "opened"]


@contextmanager
def opened(device: Device, *, hide_cuda: bool) -> Iterator[Alias]:
    """Have cuda mean ``device`` in this process; ``Alias.in_this_thread`` has a thread's tensors say so.

    Raises:
        AliasError: the process has a real cuda device, which ``hide_cuda`` does not give up.
    """
    if not hide_cuda and torch.cuda.is_available():
        raise AliasError(
            f"this process has a CUDA device of its own, {torch.cuda.get_device_name()}, and alias=('cuda',) would hide it. "
            f"If that is meant, say hide_cuda=True (FLROUTE_HIDE_CUDA=1, or flroute run --hide-cuda)."
        )
    alias = Alias(device)
    with alias.listed():
        in_force.acquire(patches_of_pytorch())
        try:
            hear_of_cuda()
            yield alias
        except Exception as error:  # raised again as it is: only a note is added, where there is advice
            advise(error)
            raise
        finally:
            in_force.release()
