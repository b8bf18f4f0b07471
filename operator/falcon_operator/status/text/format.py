"""Put figures, ranks and places into words, for all modules that write text for people."""

from __future__ import annotations

from collections.abc import Sequence

from falcon_core.model import Cause
from falcon_core.recovery import Fault, JobChange, Place, SlowIncident, SlowLink
from falcon_core.text import clip
from falcon_core.wire.ring import Op
from falcon_operator.api.trainingrun import Restore
from falcon_operator.base.time_format import timestamp

_BRIEF = {Cause.NODE_LOST: "node lost", Cause.OUT_OF_MEMORY: "out of memory"}
NAMED = 5  # of a list: the rest is counted
_OPS = {
    Op.ALL_REDUCE: "all-reduce",
    Op.ALL_GATHER: "all-gather",
    Op.REDUCE_SCATTER: "reduce-scatter",
    Op.ALL_TO_ALL: "all-to-all",
    Op.BARRIER: "barrier",
    Op.BROADCAST: "broadcast",
    Op.REDUCE: "reduce",
    Op.GATHER: "gather",
    Op.SCATTER: "scatter",
    Op.SEND: "send",
    Op.RECV: "receive",
}


def milliseconds(nanoseconds: float) -> str:
    """Return an iteration time given in nanoseconds, for a printer column: ``612ms``, ``12.3s``."""
    return f"{nanoseconds / 1e6:.0f}ms" if nanoseconds < 10e9 else f"{nanoseconds / 1e9:.1f}s"


def iteration_ratio(slow_ns: float, healthy_ns: float, *, alone: bool = False) -> str:
    """Say how long an iteration takes, as a multiple of its healthy time. ``alone``: with one slowdown of several."""
    ratio = f"{slow_ns / healthy_ns:.1f}x the healthy time"
    return f"iterations would take {ratio} with this slowdown alone" if alone else f"iterations take {ratio}"


def seconds(value: float) -> str:
    """Return a duration in seconds as ``8.3 s`` or ``42 s``."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def short(value: float) -> str:
    """Return a duration in seconds as ``54 ms``, ``8.3 s`` or ``42 s``."""
    return f"{value * 1e3:.0f} ms" if value < 1 else seconds(value)


def duration(value: float) -> str:
    """Return a long duration in seconds as ``42 s``, ``12 min`` or ``2 h 10 min``."""
    if value < 100:
        return f"{value:.0f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def percent(share: float | None) -> str:
    """Return a share as ``71 %``; "unknown" for None."""
    return "unknown" if share is None else f"{share * 100:.0f} %"


def size(count: int) -> str:
    """Return a number of bytes as ``4 B`` or ``1.5 MiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def op_name(op: int) -> str:
    """Return the operation's name, such as ``all-reduce``; "collective" for an unknown operation."""
    return _OPS.get(Op(op), "collective") if op in set(Op) else "collective"


def listed(names: Sequence[str], total: int | None = None, most: int = NAMED) -> str:
    """Return ``a, b and 3 more``. ``total``: how many there are, where ``names`` are only the first of them."""
    total = len(names) if total is None else total
    shown = list(names[:most])
    more = f" and {total - len(shown)} more" if total > len(shown) else ""
    return ", ".join(shown) + more


def place(at: Place) -> str:
    """Return a rank's place as ``rank 2 (pod gpt2-2-x7kfd, node node-c)``."""
    return f"rank {at.rank} (pod {at.pod_name}, node {at.node or 'none'})"


def fault_where(fault: Fault) -> str:
    """Return the rank, or the replica, with its pod and node."""
    if fault.is_of_all_ranks:
        return "all ranks"
    who = f"rank {fault.rank}" if fault.rank is not None else f"replica {fault.replica}"
    return f"{who} (pod {fault.pod_name}, node {fault.node or 'none'})"


def fault_brief(fault: Fault) -> str:
    """Return who failed and how, for a line in a table."""
    if fault.is_of_all_ranks:
        return clip(fault.text, 80)
    who = f"rank {fault.rank}" if fault.rank is not None else f"replica {fault.replica}"
    who = f"{who} on {fault.node}" if fault.node else who
    return f"{who}: {_BRIEF.get(fault.cause) or clip(fault.text, 50)}"


def link_where(link: SlowLink) -> str:
    """Return both ends of a slow link; if more than two ranks look alike, all of these."""
    places = listed([place(end) for end in link.ranks], link.members)
    if link.pair:
        return f"the link between {listed([place(end) for end in link.pair])}"
    if link.node:
        return f"the link of node {link.node}: {places}"
    return f"{'the link' if link.members == 2 else 'a link'} between {places}"


def link_brief(link: SlowLink) -> str:
    """Return the slow link for a line in a table."""
    if link.node:
        return f"the link of {link.node} is slow"
    if link.pair:
        return f"the link between {' and '.join(end.node for end in link.pair)} is slow"
    which = "the link" if link.members == 2 else "a link"
    ranks = listed([str(end.rank) for end in link.ranks], link.members)
    nodes = listed(list(dict.fromkeys(end.node for end in link.ranks)), most=3)
    return f"{which} between ranks {ranks} ({nodes}) is slow"


def restore_words(restore: Restore) -> str:
    """Return from what the ranks began again, as ``from step 120: 4 ranks from their own memory …``."""
    if not restore.step:
        return "from the beginning: there was no checkpoint that all ranks could load"
    pods = (
        f"pod{'' if len(restore.keepers) == 1 else 's'} {listed(restore.keepers)}" if restore.keepers else "other pods"
    )
    # In the order of cost: own memory needs no transfer, the folder is the slowest.
    parts = (
        (restore.own, "the memory of their own pods"),
        (restore.copied, f"copies in the memory of {pods}"),
        (restore.replicas, "ranks of other pods that hold the same state"),
        (restore.folder, "their folder"),
    )
    where = [f"{count} rank{'' if count == 1 else 's'} from {place}" for count, place in parts if count]
    took = f", in {short(restore.seconds)}" if restore.seconds else ""
    return f"from step {restore.step}: {', '.join(where)}{took}"


def change_words(change: JobChange) -> str:
    """Return what is known of a change of the job itself, as a sentence without its full stop."""
    after, before = milliseconds(change.after_ns), milliseconds(change.before_ns)
    return (
        f"since {timestamp(change.since)} (iteration {change.iteration} of generation {change.generation}) iterations"
        f" take {after} instead of {before} ({change.after_ns / change.before_ns:.2f}x); all ranks compute"
        " longer by the same factor, so the job itself has changed, and no node or link is at fault (ranks that wait"
        " for one of them where Falcon sees no call, in a loop that never sleeps or on a device, look the same)"
    )


def judged_words(done: str, slow: SlowIncident) -> str:
    """Return what was done about a slowdown and what follows, until its effect is known: a line in a table."""
    return f"{done}, {'restarting' if slow.restart.trained_at is None else 'measuring whether it helped'}"


def since_words(slow: SlowIncident) -> str:
    """Say since when a job is slow."""
    if slow.onset.iteration <= 1:
        return f"{timestamp(slow.onset.at)} (from the first iteration of generation {slow.onset.generation})"
    after = max(1, slow.onset.reported_iteration - slow.onset.iteration + 1)
    return f"{timestamp(slow.onset.at)} (iteration {slow.onset.iteration}, reported after {after} iterations)"
