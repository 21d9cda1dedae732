"""What a caller waits for: a collective under way, and PyTorch's handle of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, NoReturn

import torch

from flroute.errors import CollectiveError
from flroute.torch_compat import callback_work, source_rank_of

Start = Callable[[], Sequence[Any]]
"""Has the transport begin, and returns its works."""


class Flight:
    """A collective under way. It lands once, with or without an error, in whichever thread hears of that first.

    Args:
        name: for messages.
        results: what the future answers with, device tensors.
        finish: what is left to do once the data has come.
        explain: makes an error out of what the transport says.
        calls_back: whether the transport's works say by themselves when they are done; else whoever waits learns of it.

    Attributes:
        future: PyTorch's future of the handle; ``handle_of`` sets it.
        works: the transport's.
    """

    def __init__(
        self,
        name: str,
        results: Sequence[torch.Tensor],
        *,
        finish: Callable[[], None],
        explain: Callable[[Exception], Exception],
        calls_back: bool,
    ) -> None:
        self.name, self._results, self._calls_back = name, list(results), calls_back
        self._finish, self._explain = finish, explain
        self._lock, self._waiter = threading.Lock(), threading.Lock()
        self._landed, self._off = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._left = 0
        self.future: Any = None
        self.works: Sequence[Any] = ()

    @property
    def has_landed(self) -> bool:
        """Whether it is over, with or without an error; whoever saw the future complete sees that."""
        return self._landed.is_set() or self.future.done()

    def take_off(self, start: Start) -> None:
        """Start the transport; what goes wrong at that is for those who wait."""
        try:
            works = start()
            self.works, self._left = works, len(works)
            if self._calls_back:
                for work in works:
                    work.get_future().add_done_callback(self._one_is_done)
        except Exception as error:  # noqa: BLE001 -- perhaps in a helper thread, where nobody would see it
            self.land(error)
        else:
            if not works:
                self.land()
        finally:
            self._off.set()

    def _one_is_done(self, future: Any) -> None:
        self._left -= 1
        try:
            future.value()
        except Exception as error:  # noqa: BLE001 -- in the transport's thread, where nobody would see it
            self.land(error)
        else:
            if not self._left:
                self.land()

    def land(self, error: Exception | None = None) -> None:
        """It is over: finish, or explain the error. Calls after the first count for nothing."""
        with self._lock:
            if self._landed.is_set():
                return
            try:
                if error is None:
                    self._finish()
                elif isinstance(error, CollectiveError):
                    self._error = error
                else:
                    self._error = self._explain(error)
                    self._error.__cause__ = error
            except Exception as failed:  # noqa: BLE001 -- likewise
                self._error = failed
            self.future.set_result(self._results if self._error is None else _Failed(self._error))
            self._results, self._finish, self._explain = (
                [],
                _nothing,
                _as_it_is,
            )  # they hold tensors and copies
            self._landed.set()
            self._off.set()  # it may never have taken off

    def wait_in_background(self) -> None:
        """Let a thread wait where nothing calls back, so that the future completes by itself."""
        if not (self._calls_back or self.has_landed):
            threading.Thread(target=self._wait_for_works, args=(timedelta(),), daemon=True).start()

    def _wait_for_works(self, timeout: timedelta) -> None:
        """Wait in this thread, unless another one does or has."""
        self._off.wait()
        if not self._waiter.acquire(timeout=timeout.total_seconds() or -1):
            return
        try:
            if not self._landed.is_set():
                for work in self.works:
                    work.wait(timeout)
        except Exception as error:  # noqa: BLE001 -- likewise
            self.land(error)
        else:
            self.land()
        finally:
            self._waiter.release()

    def wait(self, timeout: timedelta = timedelta()) -> bool:
        """Wait until it has landed.

        Raises:
            CollectiveError: it failed, or takes longer than ``timeout``, if that is not 0.
        """
        if not self._calls_back:
            self._wait_for_works(timeout)
        seconds = timeout.total_seconds()
        if not self._landed.wait(seconds if seconds > 0 else None):
            raise CollectiveError(
                f"{self.name} has not finished within the {seconds:g} s that wait() was given"
            )
        if self._error is not None:
            raise self._error
        return True


def _nothing() -> None:
    return None


def _as_it_is(error: Exception) -> Exception:
    return error


class _Failed:
    """In the place of results that did not come: C++ pickles what a Python future holds, and any use of it raises the error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def _raise(self, *_: object) -> NoReturn:
        raise self._error

    __reduce_ex__ = __getitem__ = __iter__ = __len__ = _raise


@cache
def _handle_class() -> type[Any]:
    class Handle(callback_work()):  # type: ignore[misc]
        """What ``async_op=True`` returns."""

        def __init__(self, flight: Flight) -> None:
            super().__init__(flight.wait)
            self._flight = flight
            flight.future = super().get_future()

        def is_completed(self) -> bool:
            return self._flight.has_landed

        def get_future(self) -> Any:
            self._flight.wait_in_background()
            return super().get_future().then(_results_of)

        def source_rank(self) -> int:
            return source_rank_of(self._flight.works[0])

        _source_rank = source_rank

    return Handle


def _results_of(future: Any) -> list[torch.Tensor]:
    return list(future.value())


class _Thread(threading.local):
    latest: Any = None


_thread = _Thread()


def handle_of(flight: Flight) -> Any:
    """A ``torch.distributed.Work`` for a flight.

    C++ keeps what is needed to wait. The Python half, which also tells whether it is completed, would be gone before the
    caller has it: the latest one of each thread is kept.
    """
    _thread.latest = handle = _handle_class()(flight)
    return handle
