"""What cuda means inside a session with ``alias=("cuda",)``: devices, tensors, and what is told to whom."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flroute
from flroute.cuda_alias.advice import INSTEAD_OF
from flroute.errors import AliasError
from support import cuda_session

FIRST = torch.device("cuda", 0)
SECOND = torch.device("cuda", 1)


session = pytest.fixture(cuda_session)


# Places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["cuda", "cuda:0", torch.device("cuda"), FIRST, 0], ids=str)
def test_a_place_may_be_named_in_every_way(session: flroute.Session, place: Any) -> None:
    host = torch.ones(2)
    made = [
        torch.zeros(2, device=place),
        torch.tensor([1.0], device=place),
        torch.zeros_like(host, device=place),
        host.new_ones(2, device=place),
        torch.randn(2, device=place),
        host.to(place),
        host.to(device=place),
        host.to(place, torch.float16),
        host.cuda(),
        nn.Linear(2, 2).to(place).weight,
        nn.Linear(2, 2, device=place).weight,
        nn.Linear(2, 2).cuda().weight,
    ]
    assert [tensor.device for tensor in made] == [FIRST] * len(made)
    assert all(tensor.is_cuda and tensor.device.type == "cuda" for tensor in made)
    assert not host.is_cuda
    assert host.device.type == "cpu"


@pytest.mark.parametrize("place", ["cuda:1", SECOND, 1], ids=str)
def test_a_number_chooses_among_the_vendors_devices(session: flroute.Session, place: Any) -> None:
    host = torch.ones(2)
    made = [torch.zeros(2, device=place), host.to(place), host.cuda(place), nn.Linear(2, 2).to(place).weight]
    assert [tensor.device for tensor in made] == [SECOND] * 4
    assert [tensor.get_device() for tensor in made] == [1] * 4


def test_what_a_tensor_says_leads_back_to_its_device(session: flroute.Session) -> None:
    x = torch.ones(2, device="cuda:1")
    assert (str(x.device), x.device, x.device.index, x.get_device()) == ("cuda:1", SECOND, 1, 1)
    for place in (x.device, str(x.device), x.get_device()):
        assert torch.zeros(2, device=place).device == x.device
    assert torch.zeros_like(x).device == x.device
    assert torch.device(0) == FIRST


def test_the_numbers_begin_with_the_sessions_device() -> None:
    with flroute.enable(device="reference:1", alias=("cuda",)):
        x, y = torch.ones(2, device="cuda:0"), torch.ones(2, device=1)
        assert (x.device, y.device, torch.ones(2).cuda().device) == (FIRST, SECOND, FIRST)
        assert (torch.cuda.current_device(), x.get_device(), y.get_device()) == (0, 0, 1)
        torch.cuda.set_device(1)
        assert (torch.cuda.current_device(), torch.ones(2).cuda().device) == (1, SECOND)
    assert (str(x.device), str(y.device)) == ("fl:1", "fl:0")


def test_visible_devices_limit_them(monkeypatch: pytest.MonkeyPatch, session: flroute.Session) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")  # before the script first needs one
    assert torch.cuda.device_count() == 1
    x = torch.ones(2, device="cuda:0")
    with pytest.raises(
        flroute.DeviceError,
        match="cuda:1 does not exist; here cuda:0 is reference:1, by CUDA_VISIBLE_DEVICES='1'",
    ):
        torch.ones(2, device="cuda:1")
    assert "device='fl:1'" in repr(x)
    assert torch.ones(2).cuda().device == torch.device("cuda:0"), "the session's own is invisible"


def test_no_visible_device_is_a_machine_without_cuda(
    monkeypatch: pytest.MonkeyPatch, session: flroute.Session
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (torch.cuda.is_available(), torch.cuda.device_count()) == (False, 0)
    for move in (
        lambda: torch.ones(2).cuda(),
        lambda: torch.ones(2, device="cuda"),
        lambda: torch.ones(2).to("cuda:0"),
    ):
        with pytest.raises(flroute.DeviceError, match="there is none, by CUDA_VISIBLE_DEVICES=''"):
            move()


def test_a_device_that_is_not_there(session: flroute.Session) -> None:
    with pytest.raises(
        flroute.DeviceError, match="cuda:7 does not exist; here cuda:0 is reference:0, cuda:1 is reference:1"
    ):
        torch.ones(2, device="cuda:7")


def test_contexts_and_defaults(session: flroute.Session) -> None:
    with torch.device("cuda"):
        assert torch.ones(2).device == FIRST
    with torch.cuda.device(1):
        assert torch.ones(2, device="cuda").device == SECOND
    torch.set_default_device("cuda:1")
    try:
        assert (torch.ones(2).device, torch.get_default_device()) == (SECOND, SECOND)
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_types_of_the_days_before_dtype(session: flroute.Session) -> None:
    x = torch.cuda.FloatTensor(2, 3)
    assert (x.shape, x.dtype, x.device) == ((2, 3), torch.float32, FIRST)
    assert torch.cuda.LongTensor([1, 2]).tolist() == [1, 2]
    assert torch.cuda.FloatTensor().shape == torch.FloatTensor().shape == (0,)
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)
    assert x.type() == "torch.cuda.FloatTensor"
    for kind in (torch.cuda.HalfTensor, "torch.cuda.HalfTensor"):
        half = torch.ones(2).type(kind)
        assert (half.dtype, half.device) == (torch.float16, FIRST)
    assert torch.ones(2).type(torch.float64).device.type == "cpu"


def test_pinned_memory_is_accepted(session: flroute.Session) -> None:
    assert torch.empty(2, pin_memory=True).device.type == "cpu"
    assert torch.ones(2).pin_memory().to("cuda", non_blocking=True).is_cuda
    dataset = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = torch.utils.data.DataLoader(dataset, batch_size=3, pin_memory=True)
    assert [batch.cuda().sum().item() for (batch,) in loader] == [3, 12]


# The truth --------------------------------------------------------------------------------------------------------


def test_pytorch_and_flroute_hear_the_truth(session: flroute.Session) -> None:
    x = torch.ones(2, device="cuda")
    assert "device='fl:0'" in repr(x)
    (x + 1).sum().item()
    assert {decision.device for decision in session.decisions} <= {"fl:0", "cpu", "cpu->fl:0", "fl:0->cpu"}
    torch.testing.assert_close(x.cpu(), torch.ones(2))
    optimizer = torch.optim.AdamW([nn.Parameter(x)], foreach=None)  # asks PyTorch's lists of devices
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2, device="cuda")
    optimizer.step()
    assert not [decision for decision in session.decisions if decision.route == "fallback"]


def test_code_that_autograd_calls_hears_of_cuda(session: flroute.Session) -> None:
    heard: list[tuple[str, bool]] = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            heard.append(("forward", x.is_cuda))
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            heard.append(("backward", gradient.is_cuda))
            return gradient * torch.full((2,), 2.0, device="cuda")

    def hook(gradient: torch.Tensor) -> torch.Tensor:
        heard.append(("hook", gradient.device == FIRST))
        return gradient * torch.tensor(3.0, device="cuda")

    x = torch.ones(2).cuda().requires_grad_()
    x.register_hook(hook)
    Double.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6, 6]
    (again,) = torch.autograd.grad(Double.apply(x).sum(), x)
    assert again.tolist() == [6, 6]
    assert heard == [("forward", True), ("backward", True), ("hook", True)] * 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpointed_block_is_computed_again_under_the_same_names(
    session: flroute.Session, reentrant: bool
) -> None:
    def block(x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda
        return (x * torch.full((2,), 3.0, device="cuda")).tanh()

    x = torch.full((2,), 0.1).cuda().requires_grad_()
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    expected = torch.full((2,), 0.1, requires_grad=True)
    (expected * 3).tanh().sum().backward()
    torch.testing.assert_close(x.grad.cpu(), expected.grad)


# Files ------------------------------------------------------------------------------------------------------------


def saved(tensor: torch.Tensor) -> io.BytesIO:
    file = io.BytesIO()
    torch.save({"weight": tensor}, file)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("map_location", "expected"),
    [
        (None, SECOND), ("cuda", FIRST), ("cuda:0", FIRST), (0, FIRST), (1, SECOND), (torch.device("cuda:1"), SECOND),
        ({"cuda:1": "cuda:0"}, FIRST), ("cpu", torch.device("cpu")), (lambda storage, _: storage.cuda(0), FIRST),
        (lambda storage, _: storage, torch.device("cpu")),
    ],
)  # fmt: skip
def test_a_checkpoint_is_read_where_map_location_says(
    session: flroute.Session, map_location: Any, expected: torch.device
) -> None:
    file = saved(torch.arange(3.0).to("cuda:1"))
    weight = torch.load(file, map_location=map_location)["weight"]
    assert (weight.device, weight.tolist()) == (expected, [0, 1, 2])


@pytest.mark.parametrize("new_format", [True, False])
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_device_comes_back_from_a_file_as_it_was_saved(
    session: flroute.Session, weights_only: bool, new_format: bool
) -> None:
    x = torch.ones(2, device="cuda:1")
    devices = [torch.device("cuda"), x.device, torch.device("cpu")]
    file = io.BytesIO()
    torch.save({"devices": devices, "x": x}, file, _use_new_zipfile_serialization=new_format)
    file.seek(0)
    read = torch.load(file, weights_only=weights_only)
    assert read["devices"] == devices
    assert read["x"].device == x.device


def test_a_file_says_what_it_would_on_a_machine_with_cuda(session: flroute.Session, tmp_path: Path) -> None:
    file = saved(torch.ones(2).to("cuda:1"))
    assert b"cuda:1" in file.getvalue()
    assert b"fl:" not in file.getvalue()


def test_a_checkpoint_of_real_cuda_devices_is_read(session: flroute.Session) -> None:
    file = saved(torch.ones(2).to("cuda:1"))
    distant = io.BytesIO(file.getvalue().replace(b"cuda:1", b"cuda:7"))  # written on a larger machine
    assert torch.load(distant, map_location="cuda:0")["weight"].device == FIRST
    distant.seek(0)
    with pytest.raises(flroute.DeviceError, match=r"cuda:7 does not exist.*map_location"):
        torch.load(distant)


def test_outside_a_session_a_file_of_cudas_asks_for_map_location() -> None:
    with flroute.enable(alias=("cuda",)):
        file = saved(torch.ones(2, device="cuda"))
    with pytest.raises(RuntimeError, match="CUDA"):
        torch.load(file)
    file.seek(0)
    assert str(torch.load(file, map_location="fl:1")["weight"].device) == "fl:1"


# What is reported ---------------------------------------------------------------------------------------------------


def test_uses_are_counted_by_name_and_line(session: flroute.Session) -> None:
    for _ in range(3):
        x = torch.ones(2).cuda()
    assert x.is_cuda
    nn.Linear(2, 2).to("cuda")
    uses = {use.name: use for use in session.redirected}
    assert uses["Tensor.cuda"].calls == 3
    assert uses["Tensor.cuda"].site.rpartition(":")[0] == __file__
    assert uses["Tensor.to"].calls == 2  # weight and bias, from the line of the user's
    assert uses["Tensor.to"].site.rpartition(":")[0] == __file__
    report = session.report()
    assert f"  Tensor.cuda, 3 calls, {uses['Tensor.cuda'].site}" in report.summary()
    listed = report.to_dict()["redirected"]
    assert {"name": "Tensor.cuda", "site": uses["Tensor.cuda"].site, "calls": 3} in listed


def test_a_session_without_an_alias_reports_none() -> None:
    with flroute.enable() as plain:
        torch.ones(2)
    assert plain.report().to_dict()["redirected"] == []
    assert not [line for line in plain.report().summary() if "cuda" in line]


# What cannot be -------------------------------------------------------------------------------------------------------


def test_what_the_device_cannot_be_is_refused_by_name(session: flroute.Session) -> None:
    for use, name in (
        (lambda: torch.cuda.CUDAGraph(), "torch.cuda.CUDAGraph"),
        (lambda: torch.cuda.graph(None), "torch.cuda.graph"),
        (lambda: torch.cuda.make_graphed_callables(nn.Linear(2, 2), ()), "torch.cuda.make_graphed_callables"),
        (lambda: torch.cuda.cudart().cudaMemGetInfo(0), r"torch.cuda.cudart\(\).cudaMemGetInfo"),
        (lambda: torch.cuda.nccl.version(), "torch.cuda.nccl.version"),
        (lambda: torch.cuda.memory._record_memory_history(), "torch.cuda.memory._record_memory_history"),
        (lambda: torch.cuda.temperature(), "torch.cuda.temperature"),
        (lambda: torch.cuda.comm.broadcast(torch.ones(2), [0]), "torch.cuda.comm.broadcast"),
    ):
        with pytest.raises(AliasError, match=rf"{name} is not there: .*flroute runs 'cuda' on fl:0"):
            use()
    assert not isinstance(1, torch.cuda.CUDAGraph)


@pytest.mark.parametrize("package", sorted(INSTEAD_OF))
def test_a_package_for_cuda_is_named_with_what_to_do(package: str) -> None:
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    with pytest.raises(ModuleNotFoundError) as caught, flroute.enable(alias=("cuda",)):
        raise error
    assert any(INSTEAD_OF[package] in note for note in caught.value.__notes__)


def test_other_errors_carry_no_advice() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, flroute.enable(alias=("cuda",)):
        raise ModuleNotFoundError("No module named 'numbers2'", name="numbers2")
    assert not hasattr(caught.value, "__notes__")


def test_a_cuda_extension_is_named_with_what_to_do() -> None:
    from torch.utils import cpp_extension

    with pytest.raises((OSError, RuntimeError)) as caught, flroute.enable(alias=("cuda",)):
        cpp_extension.load(name="kernels", sources=["nowhere/kernels.cu"])
    assert any(
        "CUDA extension" in note and "flroute.vendor.kernel" in note for note in caught.value.__notes__
    )
