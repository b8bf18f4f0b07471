"""Take waits outside of known calls out of the ranks' computation, so that the rank they wait for stands out.

``signals.job.unseen_waits`` finds them by CPU time and stack samples. What a waiting rank computes longer than it did
becomes a wait: all else then judges the ranks as if the shim had seen the call. A rank that ran is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from falcon_core.recovery.model.observation import Look, Observation, Ranks, RankSeen
from falcon_core.recovery.model.policy import Policy
from falcon_core.recovery.model.slowdown import SlowIncident
from falcon_core.signals.job.unseen_waits import RanWhile, Waiting, computes_longer, waiting
from falcon_core.stats.medians import Flags, Floats, median

COUNTED_SECONDS = 15.0  # after an onset: three of the launcher's readings, until CPU times are those of slow iterations
SAMPLED_SECONDS = 90.0  # after an onset, in which all stack samples arrive
replace = msgspec.structs.replace


def taken_out(look: Look, slowdowns: Sequence[SlowIncident] = ()) -> Look:
    """Return the look without waits outside known calls; the same look where none are found.

    A rank that one of the ``slowdowns`` names keeps its times until the samples of all ranks are known.
    """
    obs = look.obs
    # At nearly every look of a healthy job this is all.
    if not obs.running or not obs.reports.has_onset.any():
        return look
    found = find(obs, look.policy)
    waits = found.waits & ~_named(slowdowns, obs) if found.finding == "Alike" else found.waits
    if found.finding == "Alike" and waits.all():
        return replace(look, obs=replace(obs, ranks=_with_equal_growth(obs.reports)))
    if found.finding not in ("Wait", "Alike"):
        return look
    newest = look.policy.consecutive
    ranks = [_without_wait(rank, newest) if waits else rank for rank, waits in zip(obs.ranks, waits, strict=True)]
    return replace(look, obs=replace(obs, ranks=ranks))


def _named(slowdowns: Sequence[SlowIncident], obs: Observation) -> Flags:
    """Check which ranks slowdowns name that samples may yet show to be waited for: [n]."""
    is_sampled = all(sent.samples is not None for sent in obs.reports.sent)
    culprits = [
        slow.culprit
        for slow in slowdowns
        if slow.culprit is not None and not (is_sampled and obs.now - slow.onset.at >= SAMPLED_SECONDS)
    ]
    return np.isin(obs.reports.numbers, [rank for culprit in culprits for rank in (culprit.rank, *culprit.also)])


def find(obs: Observation, policy: Policy) -> Waiting:
    """Find the ranks that wait outside known calls: flags in the order of the ranks."""
    ranks = obs.reports
    nothing = Waiting(finding="Unknown", waits=np.zeros(len(ranks), dtype=np.bool_))
    # In a job with devices no rank says it: then no column is read.
    if len(ranks) < 2 or ranks[0].sent.healthy_cpu_fraction is None:
        return nothing
    if not (ranks.fresh & (ranks.compute_times.lengths >= policy.consecutive)).all():
        return nothing
    healthy_cpu = ranks.healthy_cpu
    if np.isnan(healthy_cpu).any():
        return nothing
    iteration_ns, healthy_ns = ranks.iteration_times.medians(policy.consecutive), ranks.healthy_iteration_ns
    compute_ns = ranks.compute_times.medians(policy.consecutive)
    ran = RanWhile(
        iteration_ns=iteration_ns,
        compute_ns=compute_ns,
        healthy_compute_ns=_known(ranks.healthy_compute_ns),
        ran_ns=(ranks.cpu + np.nan_to_num(ranks.run_delay)) * iteration_ns,
        healthy_ran_ns=(healthy_cpu + np.nan_to_num(ranks.healthy_run_delay)) * _known(healthy_ns),
    )
    longer = computes_longer(ran, policy.verify)
    # Until then the CPU times are also of healthy iterations, and ranks that wait for a short time seem to run.
    if int(longer.sum()) > 1 and _onset_seconds(obs) < COUNTED_SECONDS:
        return Waiting(finding="Alike", waits=longer)
    return waiting(ran, [sent.samples for sent in ranks.sent], policy.verify)


def _onset_seconds(obs: Observation) -> float:
    """Return the time since the newest of the onsets that ranks report; infinite where none does."""
    newest = [sent.onset.unix_ns / 1e9 for sent in obs.reports.sent if sent.onset is not None]
    return obs.now - max(newest) if newest else math.inf


def _with_equal_growth(ranks: Ranks) -> list[RankSeen]:
    """Return the ranks as if all were delayed by as much as the last of them, iteration by iteration.

    Where ranks come one after the other, as behind a lock, the order in which they come makes a rank look slower.
    Those that came before it wait for it in the calls that are known.
    """
    width = int(ranks.compute_times.lengths.min())
    longest = (ranks.compute_times.newest(width) / ranks.healthy_compute_ns[:, np.newaxis]).max(axis=0)
    grown = np.rint(longest * ranks.healthy_compute_ns[:, np.newaxis]).astype(np.int64).tolist()
    return [
        replace(
            rank, sent=replace(rank.sent, compute_ns=[*rank.sent.compute_ns[:-width], *newest], slow_compute_ns=None)
        )
        for rank, newest in zip(ranks, grown, strict=True)
    ]


def _known(times_ns: Floats) -> Floats:
    return np.where(times_ns > 0, times_ns, np.nan)


def _without_wait(rank: RankSeen, newest: int) -> RankSeen:
    """Return the rank with what it computed longer than it did as a wait; the diagnosis quotes the ``newest`` ones."""
    sent = rank.sent
    healthy_ns = sent.healthy_compute_ns or 0
    moved = [max(0, compute_ns - healthy_ns) for compute_ns in sent.compute_ns]
    computes = [compute_ns - wait_ns for compute_ns, wait_ns in zip(sent.compute_ns, moved, strict=True)]
    waits = sent.wait_ns
    if len(waits) == len(moved):
        waits = [known + wait_ns for known, wait_ns in zip(waits, moved, strict=True)]
    # Soon after an onset most of the reported iterations are from before it.
    unseen_ns = int(median(moved[-newest:])) if moved else 0
    return replace(
        rank, sent=replace(sent, compute_ns=computes, wait_ns=waits, slow_compute_ns=None), unseen_wait_ns=unseen_ns
    )


def may_still_show(found: Waiting, seconds: float) -> bool:
    """Check whether counters or samples may show more than they do. ``seconds``: since the onset."""
    if found.finding == "Unknown":
        return False
    return seconds < (SAMPLED_SECONDS if found.finding in ("Wait", "Alike") else COUNTED_SECONDS)
