"""What each rank runs in ``test_failures.py``: a program in which something goes wrong. A rank writes what it is told of that."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from train import BATCH, WIDTH, make_model

import flroute

RANK = int(os.environ.get("RANK", "0"))


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype).to("fl")


def other_size() -> None:
    dist.all_reduce(ones(4 if RANK == 0 else 2))


def other_dtype() -> None:
    dist.all_reduce(ones(4, dtype=torch.float32 if RANK == 0 else torch.float64), async_op=True).wait()


def other_op() -> None:
    if RANK == 0:
        dist.all_reduce(ones(4))
    else:
        dist.broadcast(ones(4), 0)


def a_root_that_is_not_there() -> None:
    try:
        dist.broadcast(ones(4), group_src=5, async_op=True)
    except flroute.CollectiveError as error:
        x = ones(1)
        dist.all_reduce(x)
        raise RuntimeError(f"{error} and then {x.item()}") from error


def other_order() -> None:
    """Both are known to both ranks by then."""
    for size in (4, 2, 4, 2) if RANK == 0 else (4, 2, 2, 4):
        dist.all_reduce(ones(size))


def a_rank_stays_away() -> None:
    for _ in range(3):
        dist.all_reduce(ones(4))
    if RANK == 1:
        time.sleep(8)  # longer than the others wait
        return
    dist.all_reduce(ones(4))


def stays_away_from_the_first() -> None:
    if RANK == 1:
        time.sleep(8)
        return
    dist.barrier()


def no_message_comes() -> None:
    if RANK == 1:
        time.sleep(8)
        return
    dist.recv(ones(4), 1)


def leaves_with_one_waiting() -> None:
    """Nobody waits for it, and the other rank does not come: the process ends all the same."""
    if RANK == 0:
        dist.all_reduce(ones(4), async_op=True)
        sys.stdout.write("done")
        sys.exit()


def killed_in_a_step() -> None:
    """Rank 2 dies in the forward pass of its third step: the others wait for its gradients."""
    model = torch.nn.parallel.DistributedDataParallel(make_model().to("fl"))
    for step in range(5):
        if step == 2 and RANK == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        model(torch.randn(BATCH, WIDTH).to("fl")).square().mean().backward()


def killed_in_a_collective() -> None:
    """Rank 2 dies with a collective under way."""
    dist.all_reduce(ones(4))
    if RANK == 2:
        from flroute.distributed.roll_call import RollCall

        enter = RollCall.enter

        def enter_and_die(self: RollCall, kind: str, title: str) -> None:
            enter(self, kind, title)
            time.sleep(0.2)  # the store has it
            os.kill(os.getpid(), signal.SIGKILL)

        RollCall.enter = enter_and_die  # type: ignore[method-assign, assignment]
    dist.all_reduce(ones(4))


def main() -> None:
    seconds = {"killed_in_a_step": 30, "leaves_with_one_waiting": 1000}.get(sys.argv[1], 3)
    dist.init_process_group("flroute", timeout=timedelta(seconds=seconds))
    try:
        globals()[sys.argv[1]]()
    except RuntimeError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}")
    else:
        sys.stdout.write("done")
    sys.stdout.flush()
    time.sleep(3)  # the store lives in rank 0: the others may still have questions
    os._exit(0)


if __name__ == "__main__":
    main()
