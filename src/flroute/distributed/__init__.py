"""Collectives on ``fl``: the process-group backend ``flroute``, over gloo.

PyTorch's collectives are ops (``c10d::allreduce_``) that reach a device like any other. ``collectives`` is the table of them and
of what gloo does for each; ``host_side`` shows gloo the memory of a tensor; ``works`` is what a caller waits for; ``roll_call``
knows which rank has come how far; ``handler`` chooses between a vendor's kernel and gloo, and accounts for the call; ``backend``
registers all of it with PyTorch.
"""
