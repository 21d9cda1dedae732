"""``alias=("cuda",)`` is scoped: at the end of a session, however it ends, every attribute is what it was."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import flroute
from flroute.cuda_alias.patches import find
from flroute.cuda_alias.table import patches
from flroute.errors import AliasError, SettingsError
from flroute.torch_compat import function_stack_length
from support import allow_global_flags

ABSENT = object()


def touched() -> dict[tuple[str, str], Any]:
    """Every attribute that the table names, as its owner holds it."""
    found = {}
    for patch in patches():
        owner = find(patch.owner)
        if owner is not None and hasattr(owner, patch.name):
            kept = vars(owner).get(patch.name, ABSENT)
            found[patch.owner, patch.name] = getattr(owner, patch.name) if patch.make is None else kept
    return found


def changed(before: dict[tuple[str, str], Any]) -> list[tuple[str, str]]:
    """Those that are another object now, one by one."""
    return [key for key, value in touched_now(before) if value is not before[key]]


def touched_now(before: dict[tuple[str, str], Any]) -> Iterator[tuple[tuple[str, str], Any]]:
    for owner_name, name in before:
        owner = find(owner_name)
        kept = vars(owner).get(name, ABSENT)
        by_value = owner_name.startswith("torch.backends") and kept is ABSENT
        yield (owner_name, name), getattr(owner, name) if by_value else kept


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[dict[tuple[str, str], Any]]:
    before = touched()
    assert len(before) > 150
    types = (
        torch.device,
        torch.Tensor.cuda,
        torch.Tensor.device,
        torch.cuda.is_available,
        threading.Thread.start,
    )
    yield before
    assert changed(before) == []
    assert types == (torch.device, torch.Tensor.cuda, torch.Tensor.device, torch.cuda.is_available, threading.Thread.start)  # fmt: skip
    assert function_stack_length() == 0
    assert not torch.cuda.is_available()
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(2, device="cuda")


def test_inside_nearly_all_of_it_is_replaced(nothing_stays: dict[tuple[str, str], Any]) -> None:
    with flroute.enable(alias=("cuda",)):
        replaced = changed(nothing_stays)
        assert torch.cuda.is_available()
    assert len(replaced) == len([key for key in nothing_stays if not is_flag(key)])


def is_flag(key: tuple[str, str]) -> bool:
    return key[0] in ("torch.backends.cudnn", "torch.backends.cuda.matmul")


def test_an_exception_leaves_nothing() -> None:
    @flroute.enable(alias=("cuda",))
    def script() -> None:
        torch.ones(2).cuda()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script()


def test_an_error_in_a_backward_pass_leaves_nothing() -> None:
    def fail(_: torch.Tensor) -> None:
        raise ZeroDivisionError

    @flroute.enable(alias=("cuda",))
    def script() -> None:
        x = torch.ones(2, device="cuda", requires_grad=True)
        x.register_hook(fail)
        (x * 2).sum().backward()

    with pytest.raises(ZeroDivisionError):
        script()


def test_a_session_that_cannot_open_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Any]:
        yield from list(patches())[:100]
        raise ZeroDivisionError

    monkeypatch.setattr("flroute.cuda_alias.patches_of_pytorch", broken)
    with pytest.raises(ZeroDivisionError), flroute.enable(alias=("cuda",)):
        raise AssertionError("opened")


def test_what_a_script_sets_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    allow_global_flags(monkeypatch)
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    with flroute.enable(alias=("cuda",)) as session:
        torch.backends.cudnn.benchmark = not before[0]
        torch.backends.cuda.matmul.allow_tf32 = not before[1]
        assert torch.backends.cudnn.benchmark is not before[0]
        torch.cuda.is_available = lambda: False  # a script may replace it, too
    assert (torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32) == before
    assert {use.name for use in session.redirected} == {
        "torch.backends.cudnn.benchmark",
        "torch.backends.cuda.matmul.allow_tf32",
    }


def test_what_a_script_sets_is_undone_though_pytorch_forbids_setting_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_global_flags(monkeypatch)
    before = torch.backends.cudnn.benchmark
    with flroute.enable(alias=("cuda",)):
        torch.backends.cudnn.benchmark = not before
        torch.backends.disable_global_flags()
        with pytest.raises(RuntimeError, match="not allowed to set"):
            torch.backends.cudnn.benchmark = before
    assert torch.backends.cudnn.benchmark is before
    assert torch.backends.flags_frozen()


def test_a_second_thread_leaves_nothing() -> None:
    def work() -> None:
        with flroute.enable(alias=("cuda",)):
            assert torch.ones(2).cuda().is_cuda

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_sessions_of_two_threads_may_end_in_any_order() -> None:
    first_is_open, second_is_open, first_is_over = (threading.Event() for _ in range(3))
    seen: list[bool] = []

    def first() -> None:
        with flroute.enable(alias=("cuda",)):
            first_is_open.set()
            assert second_is_open.wait(60)
        first_is_over.set()

    def second() -> None:
        assert first_is_open.wait(60)
        with flroute.enable(alias=("cuda",)):
            second_is_open.set()
            assert first_is_over.wait(60)
            seen.append(torch.cuda.is_available())  # still in force: this session is open
            seen.append(torch.ones(2).cuda().is_cuda)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True, True]


def test_sessions_nest_and_the_inner_one_says_what_cuda_is() -> None:
    with flroute.enable(device="reference:0", alias=("cuda",)):
        outer = torch.ones(2).cuda()
        with flroute.enable(device="reference:1", alias=("cuda",)):
            inner = torch.ones(2, device="cuda:0")
            assert inner.device == torch.device("cuda:0")
        again = torch.ones(2, device="cuda:0")
        assert str(inner.device) == "cuda:1"  # in terms of this session
    assert [str(t.device) for t in (outer, inner, again)] == ["fl:0", "fl:1", "fl:0"]


def test_a_session_as_a_decorator() -> None:
    @flroute.enable(alias=("cuda",))
    def train() -> torch.Tensor:
        return torch.ones(2, device="cuda:0")

    assert str(train().device) == str(train().device) == "fl:0"


def test_a_thread_started_inside_hears_of_cuda_and_goes_on_without_it_afterwards() -> None:
    go_on, heard = threading.Event(), []

    def work() -> None:
        x = torch.ones(2, device="cuda")
        heard.append((str(x.device), x.is_cuda, torch.cuda.current_device()))
        assert go_on.wait(60)
        heard.append((str(x.device), x.is_cuda))

    with flroute.enable(device="reference:1", alias=("cuda",)):
        thread = threading.Thread(target=work)
        thread.start()
        while not heard:
            thread.join(0.01)
    go_on.set()
    thread.join()
    assert heard == [("cuda:0", True, 0), ("fl:1", False)]


def test_a_thread_keeps_a_run_method_of_its_own() -> None:
    class Worker(threading.Thread):
        def run(self) -> None:
            self.device = torch.ones(2, device="cuda").device

    with flroute.enable(alias=("cuda",)):
        worker = Worker()
        worker.start()
        worker.join()
    assert worker.device == torch.device("cuda:0")
    assert "run" not in vars(worker)


def test_a_real_cuda_device_is_not_hidden_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        patched.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
        with pytest.raises(AliasError, match=r"NVIDIA H200.*hide_cuda=True"), flroute.enable(alias=("cuda",)):
            raise AssertionError("opened")
        with flroute.enable(alias=("cuda",), hide_cuda=True):
            assert torch.ones(2, device="cuda").is_cuda


@pytest.mark.parametrize("alias", [("xpu",), "mps", (), 1, ("cuda", "xpu")])
def test_another_alias_than_cuda_is_an_error(alias: Any) -> None:
    with pytest.raises(SettingsError, match=r'argument alias: .*\["cuda"\]: no other device has a stand-in'):
        flroute.enable(alias=alias)


def test_the_alias_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLROUTE_ALIAS", "cuda")
    with flroute.enable():
        assert torch.ones(2, device="cuda").is_cuda
        assert torch.ones(2).device.type == "cpu"
    with flroute.enable(default_device=True):
        assert torch.ones(2).is_cuda


def test_storages_say_cuda_to_the_users_code() -> None:
    with flroute.enable(alias=("cuda",)):
        x = torch.ones(2, device="cuda:1")
        for storage in (x.untyped_storage(), x.storage()):
            assert (str(storage.device), storage.is_cuda, storage.get_device()) == ("cuda:1", True, 1)
            host = storage.cpu()
            assert (host.device.type, host.is_cuda) == ("cpu", False)
        assert torch.UntypedStorage(4, device=x.untyped_storage().device).is_cuda
    storage = x.untyped_storage()
    assert (storage.device, storage.is_cuda, storage.get_device()) == (x.device, False, 1)


def test_scripted_functions_run_as_they_stand_and_traced_ones_as_they_ran() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.is_cuda else x * 3

    with flroute.enable(alias=("cuda",)) as session:
        x = torch.ones(2, device="cuda")
        assert torch.jit.script(twice)(x).tolist() == [2, 2]
        traced = torch.jit.trace(twice, x)
        assert traced(x).tolist() == [2, 2]
        assert "torch.jit.script" in {use.name for use in session.redirected}
    assert traced(x).tolist() == [2, 2]
    assert isinstance(torch.jit.script(twice), torch.jit.ScriptFunction)


def test_what_a_module_kept_from_inside_is_pytorchs_own_afterwards() -> None:
    with flroute.enable(alias=("cuda",)):
        kept = torch.cuda.is_available, torch.load, torch.Generator, torch.cuda.FloatTensor
        assert kept[0]()
    is_available, load, generator, float_tensor = kept
    assert not is_available()
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    assert torch.equal(load(file), torch.ones(2))
    assert isinstance(generator(), torch.Generator)
    with pytest.raises(RuntimeError, match="CUDA"):
        generator(device="cuda")
    with pytest.raises(AliasError, match="none is"):
        float_tensor(2)
