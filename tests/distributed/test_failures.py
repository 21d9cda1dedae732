"""When ranks disagree, stay away or die, the others are told which and where, instead of hanging."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
import torch.distributed as dist
from launch import Ranks

import flroute

TOLD = "CollectiveError: "


@pytest.mark.parametrize(
    ("case", "theirs"),
    [
        ("other_size", ("allreduce_ of float32 [4], SUM", "allreduce_ of float32 [2], SUM")),
        pytest.param(
            "other_dtype",
            ("allreduce_ of float32 [4], SUM", "allreduce_ of float64 [4], SUM"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "other_op",
            ("allreduce_ of float32 [4], SUM", "broadcast_ of float32 [4], root_rank 0"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "other_order",
            ("allreduce_ of float32 [4], SUM", "allreduce_ of float32 [2], SUM"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_that_disagree_are_told_what_each_calls(
    ranks: Ranks, case: str, theirs: tuple[str, str]
) -> None:
    shown = ranks(2, "failures.py", case)
    told = [text for text in shown if text.startswith(TOLD)]
    assert told, shown
    number = 3 if case == "other_order" else 1
    for text in told:
        assert f"(#{number}) on rank" in text, shown  # not one later: nobody went on with what was wrong
    assert any(
        f"rank 0 calls {theirs[0]}" in text and f"rank 1 calls {theirs[1]}" in text for text in told
    ), shown
    assert any("same collectives in the same order, with the same dtype and size" in text for text in told)
    assert case == "other_op" or "done" not in shown[0] + shown[1]  # nobody goes on with what is wrong


@pytest.mark.slow
def test_a_rank_that_stays_away_is_named_with_what_it_did_last(ranks: Ranks) -> None:
    first, second, third = ranks(3, "failures.py", "a_rank_stays_away")
    for text in (first, third):
        assert text.startswith(TOLD + "allreduce_ of float32 [4], SUM (#4) on rank "), text
        assert "rank 1 has not entered it (its last was allreduce_ of float32 [4], SUM (#3))" in text
    assert second.startswith("done")


@pytest.mark.slow
def test_so_is_one_that_never_came(ranks: Ranks) -> None:
    first, _ = ranks(2, "failures.py", "stays_away_from_the_first")
    assert first.startswith(TOLD + "barrier (#1) on rank 0 of process group '0' timed out after 3 s: ")
    assert "rank 1 has not entered it (its last was none in this group)" in first


@pytest.mark.slow
def test_a_message_that_does_not_come_is_named(ranks: Ranks) -> None:
    first, _ = ranks(2, "failures.py", "no_message_comes")
    assert first.startswith(
        TOLD + "recv_ of float32 [4], src 1, tag 0 on rank 0 of process group '0' failed: "
    )


def test_a_rank_killed_in_a_step_ends_the_others_with_a_message_that_names_it(ranks: Ranks) -> None:
    first, second, third = ranks(3, "failures.py", "killed_in_a_step")
    for text in (first, second):
        assert "CollectiveError" in text, text
        assert "allreduce_ of float32" in text
        assert "rank 2 has not entered it" in text
    assert not third


@pytest.mark.slow
def test_a_rank_killed_in_a_collective_is_named(ranks: Ranks) -> None:
    first, second, _ = ranks(3, "failures.py", "killed_in_a_collective")
    for text in (first, second):
        assert text.startswith(TOLD + "allreduce_ of float32 [4], SUM (#2)"), text
        assert "rank 2 entered it and has not been heard of since" in text


@pytest.mark.slow
def test_a_process_ends_with_a_collective_that_waits_for_others(ranks: Ranks) -> None:
    assert ranks(2, "failures.py", "leaves_with_one_waiting") == ["done", "done"]


def test_a_port_in_use_is_named_at_once() -> None:
    flroute.device("reference")
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(dist.DistNetworkError, match=rf"(?s)port: {port}\b.*EADDRINUSE"):
            dist.init_process_group("flroute", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=2)
    assert not dist.is_initialized()


DESTROYED = """
import threading
import torch, flroute
import torch.distributed as dist
from flroute.distributed.host_side import HostSide

flroute.device("reference")
dist.init_process_group("flroute", store=dist.HashStore(), rank=0, world_size=1)
write_back, landing, go_on = HostSide.write_back, threading.Event(), threading.Event()

def slowly(self, ranks):
    if threading.current_thread() is not threading.main_thread():
        landing.set()
        go_on.wait()
    write_back(self, ranks)

HostSide.write_back = slowly
x = torch.ones(1 << 20, device="fl")
while not landing.wait(0.01):  # some are over before they can be listened to, and land in this thread
    dist.all_reduce(x, async_op=True)
threading.Timer(0.5, go_on.set).start()
dist.destroy_process_group()
go_on.wait()
threading.Event().wait(0.5)
print("done")
"""


def test_a_group_that_is_destroyed_while_a_collective_ends() -> None:
    """gloo's own thread must not be the last that holds the group: at its end it would wait for itself."""
    ended = subprocess.run(
        [sys.executable, "-c", DESTROYED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr[-2000:]
