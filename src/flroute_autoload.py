"""What PyTorch calls on ``import torch``, through the entry-point group ``torch.backends``.

A module of its own, outside the package: ``import flroute`` imports PyTorch, which calls this while the package is half
imported. Whatever goes wrong is kept for ``flroute doctor``; an error here would break ``import torch`` for everybody.
"""

import sys

failure: "BaseException | None" = None


def autoload() -> None:
    """Register ``fl`` where no other accelerator is available, or where ``FLROUTE_AUTOLOAD=1`` asks for it."""
    global failure
    if "flroute" in sys.modules:
        return  # flroute is importing PyTorch, and will register by itself
    try:
        from flroute import activation

        failure = activation.failure
    except BaseException as error:  # noqa: BLE001 -- see the module's docstring
        sys.modules.pop("flroute", None)
        failure = error
