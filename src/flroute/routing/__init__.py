"""The router: from a call of an op to who serves it.

A call enters through a session's mode or through ``registration``; ``router`` finds its handler; ``plans`` resolves it once:
``native`` for a vendor kernel, ``fallback`` for the host; ``device_ops`` for views, allocation and copies. ``hot_path`` is the
short cut for what was resolved before, ``accounting`` the decision log.
"""
