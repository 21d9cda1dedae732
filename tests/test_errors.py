"""Kernels that go wrong: named, and nothing of it passed on."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import flroute
from flroute import errors
from flroute.vendor import Kernel
from support import Made, Vendors, decisions_of, named, throw_away_vendors

vendors = pytest.fixture(throw_away_vendors)

WRONG: dict[str, Any] = {
    "shape": lambda x: np.ones((7,), x.dtype),
    "one dimension more": lambda x: x[None].copy(),
    "dtype": lambda x: x.astype(np.float64),
    "nothing": lambda x: None,
    "a number": lambda x: 3.5,
    "a list": lambda x: [1.0, 2.0],
    "a word": lambda x: "result",
    "two arrays": lambda x: (x.copy(), x.copy()),
    "no array in a tuple": lambda x: (),
    "a host tensor": lambda x: torch.from_numpy(x.copy()),
    "an object array": lambda x: x.astype(object),
    "a structured array": lambda x: np.zeros(x.shape, [("a", "f4")]),
}


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_result_is_named_and_not_passed_on(what: str, debug: bool, vendors: Vendors) -> None:
    made = vendors(Kernel("aten::neg", named("wrong", WRONG[what]), dtypes=(torch.float32,)))
    x, out = made.put(torch.ones(2)), made.put(torch.zeros(2))
    with flroute.enable(made.name, fallback="allow", debug=debug, default_device=False) as session:
        for _ in range(2):
            for call in (lambda: torch.neg(x), x.neg_, lambda: torch.neg(x, out=out)):
                with pytest.raises(flroute.KernelResultError, match=f"{made.name}/python:wrong") as caught:
                    call()
                assert "aten::neg" in str(caught.value)
    assert (x.tolist(), out.tolist()) == ([1, 1], [0, 0])
    assert not decisions_of(session, "aten::neg"), "a call that failed is not counted, nor left to the host"


def test_a_wrong_result_says_what_was_expected(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::neg", named("wrong", lambda x: x.astype(np.float64)[:1])))
    with flroute.enable(made.name, default_device=False), pytest.raises(flroute.KernelResultError) as caught:
        torch.neg(made.put(torch.ones(2, 3)))
    for words in ("(1, 3)", "float64", "(2, 3)", "float32", str(made.device), "not passed on"):
        assert words in str(caught.value)


def test_each_signature_is_checked_on_its_first_call(vendors: Vendors) -> None:
    made = vendors(
        Kernel("aten::neg", named("wrong", lambda x: -x if x.shape == (2,) else np.ones((9,), x.dtype)))
    )
    with flroute.enable(made.name, default_device=False):
        for _ in range(3):
            torch.neg(made.put(torch.ones(2)))
        for shape in ((3,), (2, 2), ()):
            for _ in range(2):
                with pytest.raises(flroute.KernelResultError):
                    torch.neg(made.put(torch.ones(shape)))


def test_debug_checks_every_call(vendors: Vendors) -> None:
    calls: list[int] = []

    def wrong_later(x: Any) -> Any:
        calls.append(1)
        return -x if len(calls) <= 3 else np.ones((9,), x.dtype)

    made = vendors(Kernel("aten::neg", wrong_later))
    with flroute.enable(made.name, debug=True, default_device=False):
        x = made.put(torch.ones(2))
        for _ in range(3):
            torch.neg(x)
        with pytest.raises(flroute.KernelResultError):
            torch.neg(x)


def test_each_of_several_results_is_checked(vendors: Vendors) -> None:
    made = vendors(
        Kernel(
            "aten::max.dim",
            named("wrong", lambda x, dim, keepdim=False: (x.max(dim), x.argmax(dim).astype("i4"))),
        )
    )
    with (
        flroute.enable(made.name, default_device=False),
        pytest.raises(flroute.KernelResultError, match="result 1"),
    ):
        torch.max(made.put(torch.ones(2, 3)), 1)


def test_a_wrong_number_of_results_in_a_list(vendors: Vendors) -> None:
    made = vendors(Kernel("aten::_foreach_neg", named("wrong", lambda self: [-self[0]])))
    with (
        flroute.enable(made.name, default_device=False),
        pytest.raises(flroute.KernelResultError, match="1 results"),
    ):
        torch._foreach_neg([made.put(torch.ones(2)), made.put(torch.ones(2))])


class OwnError(Exception):
    """An error no library knows."""


@pytest.fixture
def raising(vendors: Vendors) -> Made:
    def fail(a: Any, b: Any, *, alpha: Any = 1) -> Any:
        if b.flat[0] == 13:
            raise OwnError("thirteen")
        return a + alpha * b

    return vendors(Kernel("aten::add.Tensor", fail))


@pytest.mark.parametrize("warm", [0, 3], ids=["cold", "warm"])
@pytest.mark.parametrize("session", [True, False], ids=["session", "no session"])
def test_a_kernels_error_reaches_the_caller_unchanged_with_a_note(
    session: bool, warm: int, raising: Made
) -> None:
    x, y = raising.put(torch.ones(2, 3)), raising.put(torch.full((3,), 13.0))
    fine = raising.put(torch.ones(3))
    with flroute.enable(raising.name, default_device=False) if session else torch.no_grad():
        for _ in range(warm):
            torch.add(x, fine)
        with pytest.raises(OwnError, match="thirteen") as caught:
            torch.add(x, y)
        assert torch.add(x, fine).tolist() == [[2] * 3] * 2, "the next call works"
    assert type(caught.value) is OwnError
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        for words in (
            f"{raising.name}/python:fail", "aten::add.Tensor", str(raising.device), "self: torch.float32 [2, 3]",
            "other: torch.float32 [3]",
        ):  # fmt: skip
            assert words in note


@pytest.mark.parametrize("call", ["in place", "out"])
def test_a_kernels_error_leaves_the_target_alone(call: str, raising: Made) -> None:
    x, y, out = raising.put(torch.ones(2)), raising.put(torch.full((2,), 13.0)), raising.put(torch.zeros(2))
    with flroute.enable(raising.name, default_device=False):
        for _ in range(2):
            with pytest.raises(OwnError):
                x.add_(y) if call == "in place" else torch.add(x, y, out=out)
    assert (x.tolist(), out.tolist()) == ([1, 1], [0, 0])


def test_a_kernels_error_in_backward_is_the_callers(vendors: Vendors) -> None:
    def fail(grad: Any, x: Any, threshold: Any) -> Any:
        raise OwnError("in backward")

    made = vendors(Kernel("aten::threshold_backward", fail))
    leaf = made.put(torch.ones(3)).requires_grad_()
    for _ in range(2):
        with flroute.enable(made.name, fallback="allow", default_device=False):
            loss = torch.relu(leaf).sum()
            with pytest.raises(OwnError, match="in backward"):
                loss.backward()
        assert leaf.grad is None
    (leaf * 2).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.tolist() == [2, 2, 2]


def test_a_device_tensor_has_no_numpy_and_says_so() -> None:
    with pytest.raises(TypeError, match=r"fl.*cpu"):
        torch.ones(2, device="fl").numpy()


def test_flroutes_own_errors_have_one_root() -> None:
    for name in ("CompatibilityError", "SettingsError", "UnknownVendorError", "DeviceError", "VendorError",
                 "KernelResultError", "FallbackError", "Unsupported"):  # fmt: skip
        assert issubclass(getattr(errors, name), flroute.FlrouteError)
        assert getattr(flroute, name) is getattr(errors, name)
    assert issubclass(flroute.FlrouteError, RuntimeError)
    assert issubclass(flroute.UnknownVendorError, LookupError)
    assert issubclass(flroute.SettingsError, ValueError)


def test_another_owner_of_the_device_slot_is_named() -> None:
    code = (
        "import torch\n"
        "torch.utils.rename_privateuse1_backend('npu')\n"
        "import flroute\n"
        "try:\n    flroute.enable('reference')\nexcept flroute.CompatibilityError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120,
        env={**__import__("os").environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "FLROUTE_AUTOLOAD": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "'npu'" in done.stdout
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout


def test_every_error_has_a_public_name_to_catch_it_by() -> None:
    kinds = {
        name for name, kind in vars(errors).items() if getattr(kind, "__module__", "") == errors.__name__
    }
    assert kinds - set(flroute.__all__) == {"ScanError"}, "which is the command line's: nobody calls it"
