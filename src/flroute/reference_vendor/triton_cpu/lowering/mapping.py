"""``tl.map_elementwise``: a function of single elements, which may branch and loop on its own."""

from __future__ import annotations

from flroute.reference_vendor.triton_cpu.lowering.core import Lowerer, lowers
from flroute.reference_vendor.triton_cpu.ttir import Op


@lowers("tt.map_elementwise")
def lower_map(low: Lowerer, op: Op) -> None:
    """One call after another, each of ``pack`` neighbours in row-major order; the results go to scratch memory."""
    sources, w, pack = low.operands(op), low.write, int(op.attributes["pack"])
    if len(op.regions[0]) > 1:
        raise op.refuse(
            "a mapped function that returns early is not supported; let it return once, at its end"
        )
    types = [result.type for result in op.results]
    buffers = [low.allocate(kind.numel * kind.bytes) for kind in types]
    shape = sources[0].type.shape
    low.prepare([(source, False) for source in sources], through=False)

    def call(first: str) -> None:
        places = [w.add(first, str(i)) for i in range(pack)]
        with low.scope():
            indices = [w.unravel(shape, place) for place in places]
            registers = [low.pull(source, index) for source in sources for index in indices]
            with low.region():
                values = low.inline(op.regions[0], registers)
        for i, value in enumerate(values):
            kind, buffer = types[i // pack].with_shape(()), buffers[i // pack]
            low.store_element(kind, value, w.element(kind.storage, buffer, places[i % pack]))

    w.loop("0", str(sources[0].type.numel), call, step=pack)
    for result, (kind, buffer) in enumerate(zip(types, buffers, strict=True)):
        low.define(op, low.in_buffer(kind, buffer), result)
    low.done.add(op)
