"""What cannot work on the device, declared one by one.

A declared entry still runs and must fail: once it passes, its test fails until the entry is removed. Nothing may be
excused in any other way. At most ten entries.
"""

from __future__ import annotations

DECLARED: dict[tuple[str, ...], str] = {
    (
        "linalg.matrix_rank",
        "*",
        "session",
    ): "out= stays unwritten under any TorchDispatchMode, on the host too: "
    "PyTorch's implementation takes another way while a mode is active and forgets out=",
    ("linalg.matrix_rank.hermitian", "*", "session"): "as linalg.matrix_rank",
}
"""(op), (op, dtype) or (op, dtype, mode), "*" for any -> reason. An op is named as in the test's id."""


def reason(op: str, dtype: str, mode: str) -> str | None:
    """Why something cannot work; ``None`` when it must.

    Example:
        >>> reason("add", "float32", "session") is None
        True
        >>> reason("linalg.matrix_rank.hermitian", "float32", "session")
        'as linalg.matrix_rank'
    """
    for key, why in DECLARED.items():
        if all(pattern in ("*", word) for pattern, word in zip(key, (op, dtype, mode), strict=False)):
            return why
    return None
