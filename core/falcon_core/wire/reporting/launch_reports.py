"""Define a launcher's part of its pod's report (``reports``)."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import asdict, astuple

from falcon_core.wire.launcher.launch import FirstEnd, LaunchRank, LaunchStandby, LaunchStatus
from falcon_core.wire.reporting.bounds import MAX_RANKS, MAX_TEXT, Count, CountMs, Known, Small, Text
from falcon_core.wire.reporting.messages import Int64

_LAUNCH: Final[tuple[Literal["Idle", "Running", "Stopping", "Stopped", "Exited"], ...]] = (
    "Idle",
    "Running",
    "Stopping",
    "Stopped",
    "Exited",
)
_MOST_LAUNCHES: Final = 16_384
_MS: Final = 1_000_000


class _FirstEnd(msgspec.Struct, array_like=True, frozen=True, gc=False):
    rank: Small
    local_rank: Small | None = None
    exit_code: Int64 | None = None
    signal: Int64 | None = None


class _End(msgspec.Struct, array_like=True, frozen=True, gc=False):
    ended_unix_ns: Int64 | None
    exit_code: Int64 | None = None
    signal: Int64 | None = None
    core_dumped: bool = False
    oom_killed: bool = False
    last_words: Text = ""
    first: _FirstEnd | None = None


class _Process(msgspec.Struct, array_like=True, frozen=True, gc=False):
    local_rank: Small
    rank: Known
    started_ms: CountMs  # after the first of the pod's processes
    end: _End | None = None
    blocked_since_unix_ns: Int64 | None = None


class _Standby(msgspec.Struct, array_like=True, frozen=True, gc=False):
    ready: Small
    wanted: Small
    why: Text = ""


class _Launch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    generation: Count
    dead_below: Count
    state: Annotated[int, Meta(ge=0, lt=len(_LAUNCH))]
    started_unix_ns: Int64 = 0  # of the first process
    processes: Annotated[list[_Process], Meta(max_length=MAX_RANKS)] = []
    stuck: bool = False
    untracked: Text | None = None
    error: Text | None = None
    oom_kills: Count | None = None
    oom_kills_before: Count | None = None
    standby: _Standby | None = None


_decoder = msgspec.msgpack.Decoder(_Launch | None)
NO_LAUNCH: Final = msgspec.Raw(msgspec.msgpack.encode(None))


def encode_launch(status: LaunchStatus | None) -> msgspec.Raw:
    """Encode the launcher's report; None: nothing yet."""
    return msgspec.Raw(msgspec.msgpack.encode(_launch(status)))


def _launch(status: LaunchStatus | None) -> _Launch | None:
    if status is None:
        return None
    first = min((rank.started_unix_ns for rank in status.ranks), default=0)
    return _Launch(
        generation=status.generation,
        dead_below=status.dead_below,
        state=_LAUNCH.index(status.state),
        started_unix_ns=first,
        processes=[_process(rank, first) for rank in status.ranks[:MAX_RANKS]],
        stuck=status.stuck,
        untracked=_cut(status.untracked),
        error=_cut(status.error),
        oom_kills=status.oom_kills,
        oom_kills_before=status.oom_kills_before,
        standby=_standby(status.standby),
    )


def _standby(held: LaunchStandby | None) -> _Standby | None:
    return None if held is None else _Standby(held.ready, held.wanted, _cut(held.why) or "")


def _end(rank: LaunchRank) -> _End:
    words = _cut(rank.last_words) or ""
    first = _FirstEnd(*astuple(rank.first_end)) if rank.first_end is not None else None
    return _End(rank.ended_unix_ns, rank.exit_code, rank.signal, rank.core_dumped, rank.oom_killed, words, first)


def _process(rank: LaunchRank, first_unix_ns: int) -> _Process:
    return _Process(
        local_rank=rank.local_rank,
        rank=rank.rank,
        started_ms=(rank.started_unix_ns - first_unix_ns) // _MS,
        end=_end(rank) if rank.state == "Exited" else None,
        blocked_since_unix_ns=rank.blocked_since_unix_ns,
    )


@lru_cache(maxsize=_MOST_LAUNCHES)
def decode_launch(raw: bytes) -> LaunchStatus | None:
    """Read the launcher's report. The newest of each pod is kept, since most reports only repeat it."""
    sent = _decoder.decode(raw)
    if sent is None:
        return None
    return LaunchStatus(
        generation=sent.generation,
        dead_below=sent.dead_below,
        state=_LAUNCH[sent.state],
        untracked=sent.untracked,
        stuck=sent.stuck,
        error=sent.error,
        oom_kills=sent.oom_kills,
        oom_kills_before=sent.oom_kills_before,
        standby=_launch_standby(sent.standby),
        ranks=[_launch_rank(process, sent.started_unix_ns) for process in sent.processes],
    )


def _launch_standby(sent: _Standby | None) -> LaunchStandby | None:
    return None if sent is None else LaunchStandby(ready=sent.ready, wanted=sent.wanted, why=sent.why)


def _launch_rank(sent: _Process, first_unix_ns: int) -> LaunchRank:
    end = sent.end or _End(None)
    return LaunchRank(
        local_rank=sent.local_rank,
        rank=sent.rank,
        pid=0,  # of no meaning outside its pod
        state="Running" if sent.end is None else "Exited",
        exit_code=end.exit_code,
        signal=end.signal,
        core_dumped=end.core_dumped,
        oom_killed=end.oom_killed,
        last_words=end.last_words,
        first_end=FirstEnd(**asdict(end.first)) if end.first is not None else None,
        started_unix_ns=first_unix_ns + sent.started_ms * _MS,
        ended_unix_ns=end.ended_unix_ns,
        blocked_since_unix_ns=sent.blocked_since_unix_ns,
    )


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:MAX_TEXT]
