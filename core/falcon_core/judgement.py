"""Define the thresholds that are judgements: numbers that no measurement and no format gives, each with its reason.

Settings of the job's owner (``spec.detection``) are in ``wire.reporting.messages.Detection`` and in ``recovery``'s
``Policy``. Thresholds of a detector's statistics are in the detector's module.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds. Factors are ratios of times; shares are shares of an iteration's loss unless stated otherwise."""

    # Times the median of the others: the median rule (FALCON §4, and the practice of large runs), for computation, for
    # delays and for burn-ins alike. Healthy nodes of a kind differ by a few percent, slow ones by two and more.
    median_factor: float = 1.5

    # Between iteration times of ranks that count the same thing: an agent that counts layers or micro-batches is off
    # by 2 or more, reports of different moments are off by less than this.
    same_unit_factor: float = 1.5

    # What a culprit accounts for at least. Less than half, since several faults at once share the loss.
    culprit_share: float = 0.3

    # The same, of the whole iteration: less is noise, however small the loss.
    culprit_iteration_share: float = 0.05

    # The minimum share of the loss that justifies a replacement, or the naming of a link, without the median rule: who
    # explains less than half leaves the larger part of the loss where it is.
    action_share: float = 0.5

    # Windows of C iterations that have to agree where the median rule is silent: without its factor, noise is nearer.
    # The agents' reports hold as many.
    lasting_windows: int = 3

    # Times the median of the others since the first iteration, where nothing healthy is known. Means over a generation
    # have little noise, so it may be below the median rule's factor; a role of its own (the first rank's logs and
    # metrics) makes a healthy rank compute longer, too, but rarely by so much.
    lasting_factor: float = 1.25

    # Times the distance within which this share of the job's other ranks lie around the median of their group. Unequal
    # shares of the work scatter as well: of 16 ranks with normal shares of 15 %, the largest stands so far apart in one
    # job of 700 (drawn 4 000 times). Fewer ranks would be a worse estimate, and all of them would let one hide another.
    apart_factor: float = 3.0
    apart_share: float = 0.95

    # Chance with which normal noise puts any rank of a job beyond what a single look calls noise. A look tells of a few
    # seconds, and noise that lasts repeats itself in the next ones: one false name in about a week of slowdowns.
    noise_chance: float = 1e-5

    # Share of the job's nodes on which ranks may be slow from the first iteration. A role that recurs on many nodes,
    # such as each node's first rank, is how the job shares out its work.
    few_share: float = 0.25

    # Transfers that gained this many times what a computation gained are a link's: a busy node alone slowed transfers
    # by a ninth of what it slowed computation, a link of 50 Mbit/s by at least four times as much.
    link_over_computation: float = 3.0

    # Members of a node or group whose own excess is at least this share of the largest are slow alike: one finding.
    alike_share: float = 0.5

    # A culprit whose own excess is this share of its communicator's growth explains the growth, too.
    explained_share: float = 0.5

    # Times the healthy iteration time. A job that loses half of its machines' time is shown, whatever it is used to.
    grave_factor: float = 2.0

    # Between two kinds of work (a heavy last stage): less is how layers happen to divide.
    imbalance_factor: float = 1.1

    # Share of CFS periods that were throttled, over the peers' and over the rank's own healthy share.
    throttling_growth: float = 0.10
    throttling_least: float = 0.05  # where the rank loses so little of its iterations that half of that is less

    # Seconds a second that threads waited for a core, over the peers' and over the rank's own; and median_factor times.
    contention_growth: float = 0.15

    # How much of a rank's own excess is in one gap alone (``attribution``): 0 of a slow device, 1 of late data, and
    # whatever is noise in the other gaps takes from that.
    stall_share: float = 0.7


JUDGEMENT: Final = Judgement()
