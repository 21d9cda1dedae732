"""Sparse tensors on the device: made of device tensors, computed by the host, each fallback recorded."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import flroute
from flroute.vendor import Decomposition, hookimpl
from support import Vendors, decisions_of, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:.*TypedStorage is deprecated"),
]

REFERENCE, OPAQUE = flroute.device("reference"), flroute.device("opaque")
DEVICES = pytest.mark.parametrize("device", [REFERENCE, OPAQUE], ids=["reference", "opaque"])
WHERE = pytest.mark.parametrize("where", ["outside", "session"])
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
}


def matrix(seed: int = 0) -> torch.Tensor:
    made = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed), device="cpu")
    return made * (made > 0)


def session(where: str, device: torch.device, **settings: Any) -> Any:
    settings = {"fallback": "allow", "default_device": False, **settings}
    return flroute.enable(device, **settings) if where == "session" else nullcontext()


def same(actual: torch.Tensor, expected: torch.Tensor, device: torch.device) -> None:
    """On the device, and equal in layout, sizes and every part."""
    assert actual.device == device
    assert (actual.layout, actual.shape, actual.dtype) == (expected.layout, expected.shape, expected.dtype)
    if actual.layout is torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
    torch.testing.assert_close(actual.cpu(), expected)


@WHERE
@DEVICES
@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(layout: str, device: torch.device, where: str) -> None:
    host = LAYOUTS[layout](matrix())
    with session(where, device):
        there = host.to(device)
        same(there, host, device)
        assert torch.equal(there.to_dense().cpu(), matrix())
        same(LAYOUTS[layout](matrix().to(device)), host, device)
        assert there.values().device == device
        assert torch.equal(there.values().cpu(), host.values())
        assert (there.sparse_dim(), there.dense_dim(), there._nnz()) == (
            host.sparse_dim(),
            host.dense_dim(),
            host._nnz(),
        )
        same(there.clone(), host, device)
        same(there.detach(), host, device)
        same(copy.deepcopy(there), host, device)
        assert str(device) in repr(there)


@WHERE
@DEVICES
def test_made_of_parts(device: torch.device, where: str) -> None:
    indices = torch.tensor([[0, 1, 1], [2, 0, 0]])
    values = torch.tensor([3.0, 4.0, 5.0])
    host = torch.sparse_coo_tensor(indices, values, (2, 3))
    with session(where, device) as running:
        there = torch.sparse_coo_tensor(indices.to(device), values.to(device), (2, 3))
        same(there, host, device)
        assert not there.is_coalesced()
        same(torch.sparse_coo_tensor(indices, values, (2, 3), device=device), host, device)
        same(torch.sparse_coo_tensor(indices.to(device), values.to(device)), host, device)
        if (
            where == "session" or device == REFERENCE
        ):  # of a bare size PyTorch passes on "fl" without its index
            same(
                torch.sparse_coo_tensor(size=(2, 3), device=device),
                torch.sparse_coo_tensor(size=(2, 3)),
                device,
            )
        same(
            torch.empty(2, 3, layout=torch.sparse_coo, device=device),
            torch.empty(2, 3, layout=torch.sparse_coo),
            device,
        )
        same(
            torch.zeros(2, 3, layout=torch.sparse_coo, device=device),
            torch.zeros(2, 3, layout=torch.sparse_coo),
            device,
        )
        csr = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1]), values
        same(
            torch.sparse_csr_tensor(*[t.to(device) for t in csr], (2, 3)),
            torch.sparse_csr_tensor(*csr, (2, 3)),
            device,
        )
        same(
            torch.sparse_csr_tensor(*csr, (2, 3), device=device),
            torch.sparse_csr_tensor(*csr, (2, 3)),
            device,
        )
        hybrid = torch.sparse_coo_tensor(indices, torch.ones(3, 5), (2, 3, 5))
        same(hybrid.to(device), hybrid, device)
    if running is not None:  # made of its parts, or told what it is: no work of the host's
        made = decisions_of(running, "aten::_sparse_coo_tensor_with_dims_and_tensors")
        assert made
        assert {d.route for d in made} == {"view"}


OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": lambda s, d: torch.sparse.mm(s, d.t()),
    "matmul": lambda s, d: s @ d.t(),
    "mv": lambda s, d: s @ d[0],
    "addmm": lambda s, d: torch.addmm(torch.ones(4, 4, device=d.device), s, d.t(), beta=2),
    "add sparse": lambda s, d: s + s,
    "add dense": lambda s, d: d + s,
    "mul": lambda s, d: s * 3,
    "mul dense": lambda s, d: s * d,
    "neg": lambda s, d: -s,
    "relu": lambda s, d: s.relu(),
    "abs": lambda s, d: s.abs(),
    "sum": lambda s, d: s.sum(),
    "transpose": lambda s, d: s.t(),
    "to double": lambda s, d: s.to(torch.float64),
    "to_dense": lambda s, d: s.to_dense(),
    "zeros_like": lambda s, d: torch.zeros_like(s),
}
COO_OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "coalesce": lambda s, d: torch.cat([s, s]).coalesce(),
    "sparse times sparse": lambda s, d: torch.sparse.mm(s, s.t()),
    "sum over rows": lambda s, d: torch.sparse.sum(s, 0),
    "softmax": lambda s, d: torch.sparse.softmax(s, 1),
    "sparse_mask": lambda s, d: d.sparse_mask(s),
    "select": lambda s, d: s[1],
    "narrow": lambda s, d: s.narrow(0, 1, 2),
    "index_select": lambda s, d: s.index_select(0, torch.tensor([2, 0]).to(d.device)),
    "unsqueeze": lambda s, d: s.unsqueeze(0),
    "to_csr": lambda s, d: s.to_sparse_csr(),
}


@WHERE
@DEVICES
@pytest.mark.parametrize(
    ("layout", "op"),
    [(layout, op) for layout in ("coo", "csr") for op in OPS] + [("coo", op) for op in COO_OPS],
)
def test_ops_are_the_hosts(layout: str, op: str, device: torch.device, where: str) -> None:
    run = {**OPS, **COO_OPS}[op]
    sparse, dense = LAYOUTS[layout](matrix()), matrix(1)
    try:
        expected = run(sparse, dense)
    except RuntimeError as error:
        expected = error
    with session(where, device):
        if isinstance(expected, Exception):  # what PyTorch lacks it lacks here
            with pytest.raises(type(expected)):
                run(sparse.to(device), dense.to(device))
            return
        same(run(sparse.to(device), dense.to(device)), expected, device)


IN_PLACE: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul_": lambda s, d: s.mul_(2),
    "zero_": lambda s, d: s.zero_(),
    "neg_": lambda s, d: s.neg_(),
    "add_ sparse": lambda s, d: s.add_(s.clone()),
    "add_ to dense": lambda s, d: d.add_(s, alpha=2),
    "copy_": lambda s, d: s.copy_(s * 5),
    "copy_ from the host": lambda s, d: s.copy_((s * 5).cpu()),
    "to the host's": lambda s, d: s.copy_(s.cpu().copy_(s * 5)),
    "values": lambda s, d: s._values().mul_(3) if s.layout is torch.sparse_coo else s.values().mul_(3),
}


@WHERE
@DEVICES
@pytest.mark.parametrize("layout", ["coo", "csr"])
@pytest.mark.parametrize("op", IN_PLACE)
def test_what_is_written_is_written(op: str, layout: str, device: torch.device, where: str) -> None:
    sparse, dense = LAYOUTS[layout](matrix()), matrix(1)
    with session(where, device):
        there, dense_there = sparse.to(device), dense.to(device)
        try:
            IN_PLACE[op](sparse, dense)
        except RuntimeError as error:
            with pytest.raises(type(error)):
                IN_PLACE[op](there, dense_there)
        else:
            IN_PLACE[op](there, dense_there)
        same(there, sparse, device)
        same(dense_there, dense, device)


@WHERE
@DEVICES
def test_backward(device: torch.device, where: str) -> None:
    def grads(target: torch.device) -> list[torch.Tensor]:
        s = matrix().to(target).to_sparse().requires_grad_()
        d = matrix(1).to(target).requires_grad_()
        torch.sparse.mm(s, d.t()).pow(2).sum().backward()
        values = torch.tensor([1.0, 2.0]).to(target).requires_grad_()
        made = torch.sparse_coo_tensor(torch.tensor([[0, 1], [2, 3]]).to(target), values, (4, 6))
        (made.to_dense() * d.detach()).sum().backward()
        return [s.grad.to_dense(), d.grad, values.grad]

    expected = grads(torch.device("cpu"))
    with session(where, device):
        actual = grads(device)
    assert all(grad.device == device for grad in actual)
    torch.testing.assert_close([grad.cpu() for grad in actual], expected)


@WHERE
@DEVICES
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_training_with_sparse_gradients(
    optimizer: Callable[..., Any], device: torch.device, where: str
) -> None:
    def train(target: torch.device) -> torch.Tensor:
        torch.manual_seed(0)
        table = torch.nn.Embedding(6, 3, sparse=True, device="cpu").to(target)
        steps = optimizer(table.parameters(), lr=0.1)
        for rows in ([1, 2, 1], [5], [0, 1]):
            steps.zero_grad()
            table(torch.tensor(rows).to(target)).pow(2).sum().backward()
            assert table.weight.grad.layout is torch.sparse_coo
            assert table.weight.grad.device == target
            steps.step()
        return table.weight.detach().cpu()

    expected = train(torch.device("cpu"))
    with session(where, device):
        torch.testing.assert_close(train(device), expected)


@DEVICES
def test_work_of_the_host_is_recorded_and_refused(device: torch.device) -> None:
    host = matrix().to_sparse()
    there = host.to(device)
    with session("session", device) as running:
        product = torch.sparse.mm(there, matrix(1).to(device).t())
    (decision,) = [d for d in running.fallbacks if d.op == "aten::_sparse_addmm"] or [
        d for d in running.fallbacks if d.op == "aten::addmm"
    ]
    assert (decision.route, decision.reason) == ("fallback", "layout")
    assert "sparse" in decision.detail
    assert decision.bytes_to_host > 0 or device == REFERENCE
    assert decision.bytes_to_device == product.nbytes or device == REFERENCE
    with session("session", device, fallback="error"):
        with pytest.raises(flroute.FallbackError, match="layout: vendor kernels take strided tensors"):
            there * 2
        assert there.is_coalesced()
        assert there._values().device == device
        same(host.to(device), host, device)


def rows_times_dense(
    bias: torch.Tensor, matrix: torch.Tensor, dense: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    """``addmm`` with a matrix in COO or CSR: its elements and where they are, which are strided tensors."""
    matrix = matrix.to_sparse_coo()
    rows, columns = matrix._indices()
    products = matrix._values().unsqueeze(1) * dense.index_select(0, columns)
    return (bias * beta).index_add(0, rows, products, alpha=alpha)


class ComputesSparse:
    """A vendor's own way with sparse matrices."""

    @hookimpl
    def flroute_decompositions(self, vendor: str) -> Any:
        return [Decomposition("aten::addmm", rows_times_dense)] if vendor == "reference" else ()


def test_a_vendor_computes_with_sparse_tensors_by_their_parts(vendors: Vendors) -> None:
    vendors.register(ComputesSparse())
    host, dense, bias = matrix().to_sparse(), matrix(1).t(), torch.randn(4, 4)
    there = host.to(REFERENCE)
    with session("session", REFERENCE, fallback="error") as running:
        made = torch.addmm(bias.to(REFERENCE), there, dense.to(REFERENCE), beta=0.5, alpha=2)
        plain = torch.addmm(bias.to(REFERENCE), matrix().to(REFERENCE), dense.to(REFERENCE))
    torch.testing.assert_close(made.cpu(), torch.addmm(bias, host, dense, beta=0.5, alpha=2))
    torch.testing.assert_close(plain.cpu(), torch.addmm(bias, matrix(), dense))
    assert {d.route for d in decisions_of(running, "aten::addmm")} == {"decomposed", "native"}
    assert "aten::index_add" in {d.op for d in running.decisions if d.route == "native"}


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_the_hot_path_tells_sparse_from_strided(layout: str) -> None:
    """A sparse tensor may have the sizes, dtype and strides of a strided one that was served before."""
    dense = matrix()
    sparse = LAYOUTS[layout](dense)
    with session("session", REFERENCE):
        there = dense.to(REFERENCE)
        for strided in (there, torch.ones((), device=REFERENCE).expand(4, 6)):
            for _ in range(3):
                strided.neg(), strided + strided, strided * there, strided.t(), strided.clone()
        same(sparse.to(REFERENCE).neg(), sparse.neg(), REFERENCE)
        same(sparse.to(REFERENCE) + sparse.to(REFERENCE), sparse + sparse, REFERENCE)
        same(there * sparse.to(REFERENCE), dense * sparse, REFERENCE)
        same(there + sparse.to(REFERENCE), dense + sparse, REFERENCE)
        same(sparse.to(REFERENCE).t(), sparse.t(), REFERENCE)
        same(sparse.to(REFERENCE).clone(), sparse.clone(), REFERENCE)
        assert torch.equal(there.neg().cpu(), -dense)


@DEVICES
def test_saved_and_loaded(device: torch.device) -> None:
    for make in LAYOUTS.values():
        host, file = make(matrix()), io.BytesIO()
        torch.save(host.to(device), file)
        file.seek(0)
        same(torch.load(file), host, device)
        file.seek(0)
        torch.testing.assert_close(torch.load(file, map_location="cpu"), host)


def test_a_host_operand_is_named() -> None:
    with pytest.raises(
        flroute.DeviceError, match=r"argument 'mat1' .* is on cpu .* Move it first: mat1.to\('fl:0'\)"
    ):
        torch.sparse.mm(matrix().to_sparse(), matrix().to(REFERENCE).t())


def test_memory_is_given_back() -> None:
    before = torch.fl.memory_allocated()
    for _ in range(5):
        there = matrix().to_sparse().to(REFERENCE)
        torch.sparse.mm(there, matrix().to(REFERENCE).t())
        there.mul_(2)
    del there
    assert torch.fl.memory_allocated() == before
