"""The error along the depth of a model, as a picture that stands in a page by itself."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flroute.drift.compare.comparison import TensorDifference

_WIDTH, _HEIGHT = 860, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 28, 44
_SERIES = {
    "output": ("forward: outputs", "#2f80d0"),
    "gradient": ("backward: gradients of outputs", "#c2701b"),
}
"""Each stands out on white and on black."""
_BEYOND = "#d0342c"
_LOWEST = 1e-17


def plot(tensors: Sequence[TensorDifference]) -> str:
    """Error of each layer's outputs and their gradients, relative to the largest element, over the layers in the order called.

    Axes and words have the colour of the text around, so that it is read on a light page and on a dark one.
    """
    layers = [t for t in tensors if t.what in _SERIES]
    names = list(dict.fromkeys((t.name, t.turn) for t in layers))
    if not names:
        return ""
    place = {name: at for at, name in enumerate(names)}
    exponents = _exponents([t.relative for t in layers])

    def x(t: TensorDifference) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (place[t.name, t.turn] + 0.5) / len(names)

    def y(value: float) -> float:
        low, high = exponents[0], exponents[-1]
        share = (math.log10(min(max(value, 10.0**low), 10.0**high)) - low) / max(high - low, 1)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_axes(exponents, y)]
    for at, (what, (label, hue)) in enumerate(_SERIES.items()):
        points = [t for t in layers if t.what == what]
        if points:
            parts.append(_line([(x(t), y(t.relative)) for t in points], hue))
            parts += [_point(x(t), y(t.relative), t, hue) for t in points]
            parts.append(
                f'<text x="{_LEFT + 250 * at}" y="14" fill="{hue}">&#9679; {html.escape(label)}</text>'
            )
    if any(t.excess > 1 for t in layers):
        parts.append(f'<text x="{_LEFT + 500}" y="14" fill="{_BEYOND}">&#9679; beyond what is allowed</text>')
    depth = f"{len(names)} calls of layers, first to last: {_shown(names[0])} to {_shown(names[-1])}"
    parts.append(
        f'<text x="{(_WIDTH + _LEFT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle" fill="currentColor">'
        f"largest difference relative to the largest element; {html.escape(depth)}</text>"
    )
    return (
        f'<svg role="img" aria-label="error along the depth of the model" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'style="max-width:{_WIDTH}px;width:100%;font:12px system-ui,sans-serif">{"".join(parts)}</svg>'
    )


def _exponents(values: Sequence[float]) -> list[int]:
    logs = [math.log10(max(v, _LOWEST)) for v in values if math.isfinite(v) and v > 0] or [-8.0, 0.0]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return list(range(low, max(high, low + 1) + 1))


def _axes(exponents: list[int], y: Callable[[float], float]) -> str:
    every = max(1, len(exponents) // 8)
    lines = []
    for exponent in exponents[::every]:
        at = y(10.0**exponent)
        lines.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="GrayText" stroke-opacity=".35"/>'
            f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end" fill="currentColor">1e{exponent}</text>'
        )
    return "".join(lines)


def _line(points: Sequence[tuple[float, float]], hue: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{hue}" stroke-width="1.5"/>'


def _point(x: float, y: float, t: TensorDifference, hue: str) -> str:
    beyond = t.excess > 1
    told = f"{t.in_words} ({t.kind}): {t.relative:.2g} of the largest element, {t.excess:.2g} times what is allowed"
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{5 if beyond else 3}" fill="{_BEYOND if beyond else hue}">'
        f"<title>{html.escape(told)}</title></circle>"
    )


def _shown(name: tuple[str, int]) -> str:
    return name[0] or "the model itself"
