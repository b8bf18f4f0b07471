"""Describe slow links in the words of ``kubectl describe``."""

from __future__ import annotations

from falcon_core.model import Cause
from falcon_core.planning.ski_rental import Candidate
from falcon_core.recovery import NetworkSeen, Policy, SlowIncident, SlowLink
from falcon_operator.api.trainingjob import DiagnosisStatus
from falcon_operator.status.text.exchanges import link_done, link_next
from falcon_operator.status.text.format import iteration_ratio, link_where, milliseconds, op_name, since_words
from falcon_operator.status.text.probes import probe_evidence


def describe_link(
    slow: SlowIncident, link: SlowLink, policy: Policy, next_strategy: Candidate | None
) -> DiagnosisStatus:
    """Describe a slowdown for which a link is named; the evidence says what its transfers are compared with."""
    growth = f"{(link.compute_growth - 1) * 100:+.0f} %"
    others = "no rank computes slower or lacks CPU"
    if link.compute_growth > 1 + policy.verify:
        others = "the ranks' computation, though also slower, does not explain it"
    evidence = f"iteration {milliseconds(slow.times.healthy_ns)} before, {milliseconds(slow.times.slow_ns)} now"
    # What a link is compared with depends on how it was found: by measuring, among groups, or against the time
    # before.
    if not link.comm:
        why = (
            "a slow link, found by measuring all links: the ranks' computation alone would still fit into a healthy"
            " iteration"
        )
    elif link.siblings:
        others = "the other group" if link.siblings == 1 else f"the {link.siblings} other groups"
        why = f"a slow link: {op_name(link.op)} in {_comms(link)} takes longer than in {others} of its kind"
        evidence = (
            f"in each iteration since the first, transfers last at least {link.excess_ns / 1e9:.2f} s longer than in"
            f" {others}; iteration {milliseconds(slow.times.healthy_ns)} without that,"
            f" {milliseconds(slow.times.slow_ns)} now"
        )
    else:
        why = f"a slow link: every member's {op_name(link.op)} takes longer, in {_comms(link)}, and {others}"
        evidence = (
            f"transfers last {link.excess_ns / 1e9:.2f} s longer than in a healthy iteration, in sum and at all"
            f" members; {evidence}; the largest change of a rank's computation: {growth}"
        )
    return DiagnosisStatus(
        id=slow.id,
        what="fail-slow, communication",
        where=link_where(link),
        since=since_words(slow),
        slowdown=iteration_ratio(slow.times.slow_ns, slow.times.healthy_ns),
        why=why,
        cause=Cause.SLOW_LINK.value,
        evidence=f"{evidence}{network_words(link.network)}{probe_evidence(slow)}",
        done=link_done(slow),
        next=link_next(slow, policy, next_strategy),
        state="Mitigating" if slow.phase == "Checking" else "Open",
        node=link.node,
    )


def network_words(seen: NetworkSeen | None) -> str:
    """Say what the members' networks show; nothing where none is known."""
    if seen is None:
        return ""
    before = "" if seen.healthy_again_ppm < 0 else f" ({seen.healthy_again_ppm / 1e4:.2f} % before)"
    words = f"; TCP segments sent again: {seen.again_ppm / 1e4:.2f} %{before} by pod {seen.pod_name} (node {seen.node})"
    if seen.congested:
        words += f"; RDMA adapters slowed down by {seen.congested} congestion notices a second"
    if seen.faulty:
        words += f"; {seen.faulty} RDMA packets a second lost or out of order"
    return words


def _comms(link: SlowLink) -> str:
    if link.comm == "all ranks":
        return f"the communicator of all {link.members} ranks"
    return link.comm
