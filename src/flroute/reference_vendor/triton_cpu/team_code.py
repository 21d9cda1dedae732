"""The code of a team's threads, as LLVM's text: how work is offered, taken and waited for (see ``team``)."""

from __future__ import annotations

import time

import llvmlite.binding as llvm

LOOKING = 50  # microseconds that a thread looks for work before it sleeps
PIECES = 16  # of the grid for each thread: what a thread that is held up has taken is little
FIELDS = (
    ("run", "ptr"), ("ticket", "i64"), ("next", "i64"), ("left", "i64"), ("asleep", "i64"), ("busy", "i64"), ("share", "ptr"),
    ("context", "ptr"), ("scratch", "ptr"), ("stride", "i64"), ("count", "i64"), ("pieces", "i64"),
    ("mutex", "[16 x i64]"), ("condition", "[16 x i64]"),
)  # fmt: skip
NAMES = [name for name, _ in FIELDS]
SIZE = 8 * (len(FIELDS) - 2 + 32)  # bytes
_PAUSE, _PARAMETER, _ARGUMENT = {
    "x86_64": ("llvm.x86.sse2.pause", "", ""),
    "aarch64": ("llvm.aarch64.hint", "i32", "i32 1"),
}.get(llvm.get_default_triple().partition("-")[0], ("", "", ""))
_PAUSING = f"call void @{_PAUSE}({_ARGUMENT})" if _PAUSE else ""


def team_code() -> str:
    """``make`` begins a team, ``run`` launches, ``member`` is what a thread does until the process ends.

    A launch's ``share(context, first, last, scratch)`` runs some programs.
    """
    return "\n".join((_declarations(), _make(), _run(), _work(), _now(), _member()))


def _field(name: str) -> str:
    """A register that holds a field's address."""
    return f"  %{name} = getelementptr %team, ptr %team, i32 0, i32 {NAMES.index(name)}"


def _fields(*names: str) -> str:
    return "\n".join(map(_field, names))


def _declarations() -> str:
    """A team's memory, and what the code calls."""
    return f"""
%team = type {{ {", ".join(kind for _, kind in FIELDS)} }}
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()
declare i32 @clock_gettime(i32, ptr)
{f"declare void @{_PAUSE}({_PARAMETER})" if _PAUSE else ""}
"""


def _make() -> str:
    """Begin a team in memory that is zero."""
    return f"""
define void @make(ptr %team) {{
{_fields("run", "mutex", "condition")}
  store ptr @run, ptr %run
  call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}}
"""


def _run() -> str:
    """Launch: offer a ticket, work along, close it, wait for those who took a seat."""
    return f"""
define void @run(ptr %team, i64 %threads, ptr %its_share, ptr %its_context, i64 %its_count, ptr %its_scratch, i64 %its_stride) {{
{_fields(*NAMES[1:])}
  %others = sub i64 %threads, 1
  %taken = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %free = extractvalue {{i64, i1}} %taken, 1
  br i1 %free, label %offer, label %alone
alone:
  call void %its_share(ptr %its_context, i64 0, i64 %its_count, ptr %its_scratch)
  ret void
offer:
  store ptr %its_share, ptr %share
  store ptr %its_context, ptr %context
  store ptr %its_scratch, ptr %scratch
  store i64 %its_stride, ptr %stride
  store i64 %its_count, ptr %count
  %most = mul i64 %threads, {PIECES}
  %its_pieces = call i64 @llvm.smin.i64(i64 %most, i64 %its_count)
  store i64 %its_pieces, ptr %pieces
  store i64 0, ptr %next
  store i64 0, ptr %left
  %last_ticket = load i64, ptr %ticket
  %new_ticket = add i64 %last_ticket, {1 << 32}
  %offered = or i64 %new_ticket, %others
  store atomic i64 %offered, ptr %ticket seq_cst, align 8
  %sleeping = load atomic i64, ptr %asleep seq_cst, align 8
  %any = icmp ne i64 %sleeping, 0
  br i1 %any, label %wake, label %begin
wake:
  call i32 @pthread_mutex_lock(ptr %mutex)
  call i32 @pthread_cond_broadcast(ptr %condition)
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %begin
begin:
  call void @work(ptr %team, ptr %its_scratch)
  %closed = atomicrmw and ptr %ticket, i64 {-(1 << 32)} seq_cst
  %untaken = and i64 %closed, {(1 << 32) - 1}
  %joined = sub i64 %others, %untaken
  br label %look
look:
  %tries = phi i64 [0, %begin], [%more, %patience], [%more, %yield]
  %more = add i64 %tries, 1
  %gone = load atomic i64, ptr %left acquire, align 8
  %all = icmp eq i64 %gone, %joined
  br i1 %all, label %done, label %wait
wait:
  {_PAUSING}
  %often = icmp ugt i64 %tries, 1000
  br i1 %often, label %yield, label %patience
patience:
  br label %look
yield:
  call i32 @sched_yield()
  br label %look
done:
  store atomic i64 0, ptr %busy release, align 8
  ret void
}}
"""


def _work() -> str:
    """Take pieces until none is left."""
    return f"""
define internal void @work(ptr %team, ptr %its_scratch) {{
entry:
{_fields("next", "share", "context", "count", "pieces")}
  %its_share = load ptr, ptr %share
  %its_context = load ptr, ptr %context
  %its_count = load i64, ptr %count
  %its_pieces = load i64, ptr %pieces
  br label %take
take:
  %piece = atomicrmw add ptr %next, i64 1 monotonic
  %some = icmp slt i64 %piece, %its_pieces
  br i1 %some, label %piece_of_work, label %done
piece_of_work:
  %following = add i64 %piece, 1
  %before = mul i64 %its_count, %piece
  %after = mul i64 %its_count, %following
  %first = udiv i64 %before, %its_pieces
  %last = udiv i64 %after, %its_pieces
  call void %its_share(ptr %its_context, i64 %first, i64 %last, ptr %its_scratch)
  br label %take
done:
  ret void
}}
"""


def _now() -> str:
    """Nanoseconds of a clock that does not jump."""
    return f"""
define internal i64 @now() {{
  %time = alloca {{i64, i64}}
  call i32 @clock_gettime(i32 {time.CLOCK_MONOTONIC}, ptr %time)
  %seconds = load i64, ptr %time
  %part = getelementptr {{i64, i64}}, ptr %time, i32 0, i32 1
  %nanoseconds = load i64, ptr %part
  %whole = mul i64 %seconds, 1000000000
  %both = add i64 %whole, %nanoseconds
  ret i64 %both
}}
"""


def _member() -> str:
    """Look for a ticket, take a seat, help; sleep where none comes."""
    return f"""
define void @member(ptr %team) {{
entry:
{_fields("ticket", "left", "scratch", "stride", "asleep", "mutex", "condition")}
  br label %again
again:
  %start = call i64 @now()
  %until = add i64 %start, {LOOKING * 1000}
  br label %look
look:
  %seen = load atomic i64, ptr %ticket seq_cst, align 8
  %seats = and i64 %seen, {(1 << 32) - 1}
  %offered = icmp ne i64 %seats, 0
  br i1 %offered, label %sit, label %idle
sit:
  %fewer = sub i64 %seen, 1
  %swap = cmpxchg ptr %ticket, i64 %seen, i64 %fewer seq_cst seq_cst
  %mine = extractvalue {{i64, i1}} %swap, 1
  br i1 %mine, label %help, label %look
help:
  %base = load ptr, ptr %scratch
  %step = load i64, ptr %stride
  %offset = mul i64 %step, %seats
  %own = getelementptr i8, ptr %base, i64 %offset
  call void @work(ptr %team, ptr %own)
  %ignored = atomicrmw add ptr %left, i64 1 release
  br label %again
idle:
  {_PAUSING}
  %time = call i64 @now()
  %late = icmp sgt i64 %time, %until
  br i1 %late, label %rest, label %look
rest:
  call i32 @pthread_mutex_lock(ptr %mutex)
  %one = atomicrmw add ptr %asleep, i64 1 seq_cst
  br label %sleep
sleep:
  %here = load atomic i64, ptr %ticket seq_cst, align 8
  %places = and i64 %here, {(1 << 32) - 1}
  %none = icmp eq i64 %places, 0
  br i1 %none, label %doze, label %rise
doze:
  call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %sleep
rise:
  %less = atomicrmw sub ptr %asleep, i64 1 seq_cst
  call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %again
}}
"""
