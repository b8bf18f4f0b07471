"""Encode and decode a pod's report: MessagePack arrays of whole numbers, at most 64 bytes a healthy rank.

A healthy rank sends a *brief*: how many iterations it has done, and in a few numbers how long they take. The vectors of
its newest iterations and its communicators are the *detail*. A rank sends it if its agent finds it necessary
(``falcon_agent.reporting.schedule``), or if the operator requests it (``messages.DetailRequest``).

The numbers have no fractions, so none can be infinite or NaN. All are bounded, and so are texts and lists: a report
beyond the bounds is not read. New fields go to the end of an array, where older readers ignore them and newer readers
give the default to a report that lacks them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Final, Literal, cast, get_args

import msgspec
from msgspec import Meta

from falcon_core.wire.launcher.imports import Packed
from falcon_core.wire.launcher.printed import RankOutput, bounded
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.probe import ProbeReport
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.anomalies import MAX_ANOMALIES, Anomaly
from falcon_core.wire.reporting.bounds import (
    MAX_RANKS,
    MAX_TEXT,
    Count,
    CountMs,
    Known,
    KnownMs,
    KnownTenths,
    KnownUs,
    Small,
    Text,
    Times,
)
from falcon_core.wire.reporting.groups import GroupReport
from falcon_core.wire.reporting.launch_reports import NO_LAUNCH, decode_launch, encode_launch
from falcon_core.wire.reporting.messages import (
    MAX_COMMS,
    MAX_FRAMES,
    MAX_PAIRS,
    MAX_SENDS,
    RECENT_ITERATIONS,
    SIZE_CLASSES,
    CommSignals,
    Int64,
    Onset,
    PairSignals,
    RankSignals,
    SentSignals,
    Sight,
    Summary,
    ThrottleSignals,
    Work,
)
from falcon_core.wire.reporting.microbatches import MAX_HINDRANCE, MAX_MICRO_NS, MicroShare, PerRank, Share
from falcon_core.wire.reporting.samples import StackSamples
from falcon_core.wire.reporting.stretches import FirstStretch
from falcon_core.wire.reporting.verification import RankResults
from falcon_core.wire.saves.checkpoint import MAX_HELD, Held, Loaded
from falcon_core.wire.saves.directory import DirectoryReport
from falcon_core.wire.saves.peers import CopiesReport
from falcon_core.wire.whole_numbers import fraction, in_units, median_in, of_units, permille

REPORT_VERSION: Final = 2  # 1 was JSON
MAX_STACKS: Final = 8  # different ones of a pod
_TRACKING: Final[tuple[Literal["NoRing", "Undetermined", "Tracking"], ...]] = ("NoRing", "Undetermined", "Tracking")
_WORK: Final[tuple[Work, ...]] = ("Fixed", "InBytes", "Hidden")
_SIGHTS: Final[tuple[Sight, ...]] = get_args(Sight)
_US: Final = 1_000
_MS: Final = 1_000_000
_MILLION: Final = 1_000_000
_UNTIMED: Final = -2  # µs of a micro-batch, where neither the script nor its calls time it


class _Detail(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The vectors of the newest iterations, ns, oldest first, and the communicators."""

    iteration_ns: Times = []
    compute_ns: Times = []
    wait_ns: Times = []
    comms: Annotated[list[CommSignals], Meta(max_length=MAX_COMMS)] = []
    pairs: Annotated[list[PairSignals], Meta(max_length=MAX_PAIRS)] = []
    left_out: Count = 0  # communicators and pairs beyond the bounds
    lost_records: Count = 0
    holes: Count = 0
    work: Annotated[int, Meta(ge=0, lt=len(_WORK))] = 0
    load_permille: Known = -1
    stack: Annotated[int, Meta(ge=-1, lt=MAX_STACKS)] = -1  # place in the report's stacks
    collecting_permille: Known = -1
    healthy_collecting_permille: Known = -1
    stall_permille: Known = -1
    samples: StackSamples | None = None
    sends: Annotated[list[SentSignals], Meta(max_length=MAX_SENDS)] = []
    healthy_compute_error_permille: Known = -1
    slow_compute_us: KnownUs = -1
    slow_compute_error_permille: Known = -1


class _Rank(msgspec.Struct, array_like=True, frozen=True, gc=False):
    rank: Known
    tracking: Annotated[int, Meta(ge=0, lt=len(_TRACKING))]
    iterations: Count = 0
    period_calls: Count = 0  # 0: not known
    iteration_us: KnownUs = -1  # medians of the newest iterations
    compute_us: KnownUs = -1
    wait_us: KnownUs = -1
    healthy_iteration_us: KnownUs = -1
    healthy_compute_us: KnownUs = -1
    healthy_noise_permille: Known = -1
    quiet_ms: KnownMs = -1  # from its newest call's end to the report, rounded up; -1: no call yet
    # Of a second, rounded down: a rank that is silent for too long remains so when decoded.
    hang_deadline_tenths: KnownTenths = -1
    cpu_permille: Known = -1
    run_delay_permille: Known = -1
    healthy_run_delay_permille: Known = -1
    onset: tuple[Count, Int64, Count, Count, Count] | None = None  # Onset's fields
    detail: _Detail | None = None
    size_class: Annotated[int, Meta(ge=-1, lt=SIZE_CLASSES)] = -1


class _NewRank(_Rank, array_like=True, frozen=True, gc=False):
    """A rank that has known its healthy level for a short time, scatters much, or is slow: others take no bytes."""

    longest_permille: Known = -1
    first_stretch: tuple[Count, Count, Count] | None = None  # FirstStretch's fields, shares in millionths
    longest_growth_permille: Known = -1
    healthy_cpu_permille: Known = -1
    lasting_compute_us: KnownUs = -1


class _Throttle(msgspec.Struct, array_like=True, frozen=True, gc=False):
    window_ms: CountMs
    throttled_permille: Known = -1
    healthy_throttled_permille: Known = -1


class _Report(msgspec.Struct, array_like=True, frozen=True, gc=False):
    version: Annotated[int, Meta(ge=2, le=3)]  # this one, and the next
    sequence: Count
    unix_ns: Int64
    generation: Count
    launch: msgspec.Raw = NO_LAUNCH  # (``launch_reports``) or None: read by itself, since it hardly ever changes
    throttle: _Throttle | None = None
    ranks: Annotated[list[_NewRank], Meta(max_length=MAX_RANKS)] = []
    # Each once: the ranks of a pod mostly stand at the same place.
    stacks: Annotated[list[Annotated[list[Text], Meta(max_length=MAX_FRAMES)]], Meta(max_length=MAX_STACKS)] = []


class _Troubles(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a rank's communication library had to endure, and what is not seen of it."""

    rank: Known
    retries: Small = 0
    comm_error: Small = 0
    sight: Small = 0  # a later agent may know more


class _Shared(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A rank's micro-batches."""

    rank: Known
    per_rank: PerRank
    share: Share
    micro_us: Annotated[int, Meta(ge=_UNTIMED, le=MAX_MICRO_NS // _US)] = -1


class _LongReport(_Report, array_like=True, frozen=True, gc=False):
    """A report with what most pods have nothing of: theirs does not take a byte for it."""

    output: Annotated[list[RankOutput], Meta(max_length=MAX_RANKS)] = []
    troubles: Annotated[list[_Troubles], Meta(max_length=MAX_RANKS)] = []
    checkpoints: Annotated[list[Held], Meta(max_length=MAX_HELD)] = []
    ended: msgspec.Raw = NO_LAUNCH
    check: CheckReport | None = None
    copies: CopiesReport | None = None
    shared: Annotated[list[_Shared], Meta(max_length=MAX_RANKS)] = []
    hindrance: Annotated[str, Meta(max_length=MAX_HINDRANCE)] = ""  # why these ranks' micro-batches cannot move
    directory: DirectoryReport | None = None
    smoke: CheckReport | None = None
    loaded: Annotated[list[Loaded], Meta(max_length=MAX_RANKS)] = []
    imported: Packed = b""
    network: NetworkSignals | None = None
    probe: ProbeReport | None = None


class _OddReport(_LongReport, array_like=True, frozen=True, gc=False):
    """A long report with what the agent finds odd about its own ranks."""

    anomalies: Annotated[list[Anomaly], Meta(max_length=MAX_ANOMALIES)] = []


class _GroupReport(_OddReport, array_like=True, frozen=True, gc=False):
    """A report of a pod whose own launcher lets ranks go on without a lost one."""

    groups: GroupReport | None = None


_NO_TROUBLES: Final = _Troubles(-1)


class _VerifiedReport(_GroupReport, array_like=True, frozen=True, gc=False):
    """A report with hashes of what all-reduces returned."""

    results: Annotated[list[RankResults], Meta(max_length=MAX_RANKS)] = []


_decoder = msgspec.msgpack.Decoder(_VerifiedReport)
_encoder = msgspec.msgpack.Encoder()


def encode_summary(summary: Summary, detailed: Collection[int]) -> bytes:
    """Encode a pod's report, with the detail of these ranks."""
    # Ranks of a job usually stand at the same place, so each stack is sent once.
    distinct = {tuple(rank.stack): None for rank in summary.ranks if rank.stack and rank.rank in detailed}
    stacks = {stack: place for place, stack in enumerate(list(distinct)[:MAX_STACKS])}
    fields = (
        REPORT_VERSION,
        summary.sequence,
        summary.unix_ns,
        summary.generation,
        encode_launch(summary.launch),
        _throttle(summary.throttle),
        [_brief(rank, summary.unix_ns, rank.rank in detailed, stacks) for rank in summary.ranks[:MAX_RANKS]],
        [[frame[:MAX_TEXT] for frame in stack[:MAX_FRAMES]] for stack in stacks],
    )
    troubles = [
        _Troubles(rank.rank, rank.retries, rank.comm_error, _SIGHTS.index(rank.sight))
        for rank in summary.ranks[:MAX_RANKS]
        if rank.retries or rank.comm_error or rank.sight != "Full"
    ]
    held = summary.checkpoints[:MAX_HELD]
    shared, hindrance = _shared(summary)
    rare = (summary.ended, summary.check, summary.copies, summary.directory, summary.smoke)
    last, odd = (summary.imported, summary.network, summary.probe), summary.anomalies[:MAX_ANOMALIES]
    lists = (shared, summary.output, troubles, held, summary.loaded)
    # Most reports have none of the rare parts: the short form saves their fields.
    if not any((*rare, *last, *lists, odd, summary.groups, summary.results)):
        return _encoder.encode(_Report(*fields))
    printed = bounded(summary.output[:MAX_RANKS])
    ended, loaded = encode_launch(summary.ended), summary.loaded[:MAX_RANKS]
    rest = (ended, summary.check, summary.copies, shared, hindrance, summary.directory, summary.smoke, loaded)
    long = (*fields, printed, troubles, held, *rest, *last)
    if summary.results:
        return _encoder.encode(_VerifiedReport(*long, odd, summary.groups, summary.results[:MAX_RANKS]))
    if summary.groups is not None:
        return _encoder.encode(_GroupReport(*long, odd, summary.groups))
    return _encoder.encode(_OddReport(*long, odd) if odd else _LongReport(*long))


def decode_summary(raw: bytes, pod_uid: str) -> Summary:
    """Read a pod's report.

    A rank that sent no detail gets vectors in which each of its newest iterations has its median.

    Raises:
        ValueError: the bytes are no report, are beyond the bounds, or come from a version that is not known.
    """
    try:
        report = _decoder.decode(raw)
        launch = decode_launch(bytes(report.launch))
        ended = decode_launch(bytes(report.ended))
    except RecursionError as error:  # lists in lists without end, where a newer version would have a field
        raise msgspec.DecodeError("nested too deeply") from error
    # The rare parts name their ranks, so that a healthy rank costs no byte in them.
    troubles = {each.rank: each for each in report.troubles}
    micros = {each.rank: _micro(each, report.hindrance) for each in report.shared}
    return Summary(
        pod_uid=pod_uid,
        sequence=report.sequence,
        unix_ns=report.unix_ns,
        generation=report.generation,
        launch=launch,
        ended=ended,
        ranks=[
            _signals(rank, report.unix_ns, report.stacks, troubles.get(rank.rank, _NO_TROUBLES), micros.get(rank.rank))
            for rank in report.ranks
        ],
        throttle=_throttle_signals(report.throttle),
        output=report.output,
        checkpoints=report.checkpoints,
        check=report.check,
        copies=report.copies,
        directory=report.directory,
        smoke=report.smoke,
        loaded=report.loaded,
        imported=report.imported,
        network=report.network,
        probe=report.probe,
        anomalies=report.anomalies,
        groups=report.groups,
        results=report.results,
    )


# -- ranks ------------------------------------------------------------------------------------------------------------


def _brief(rank: RankSignals, unix_ns: int, with_detail: bool, stacks: Mapping[tuple[str, ...], int]) -> _NewRank:
    onset = rank.onset
    brief = _Rank(
        rank=rank.rank,
        tracking=_TRACKING.index(rank.tracking),
        iterations=rank.iterations,
        period_calls=rank.period_calls or 0,
        iteration_us=median_in(rank.iteration_ns, _US),
        compute_us=median_in(rank.compute_ns, _US),
        wait_us=median_in(rank.wait_ns, _US),
        healthy_iteration_us=in_units(rank.healthy_iteration_ns, _US),
        healthy_compute_us=in_units(rank.healthy_compute_ns, _US),
        healthy_noise_permille=permille(rank.healthy_noise),
        quiet_ms=-1 if rank.last_call_unix_ns is None else -(min(0, rank.last_call_unix_ns - unix_ns) // _MS),
        hang_deadline_tenths=in_units(rank.hang_deadline_ns, 100 * _MS),
        cpu_permille=permille(rank.cpu_fraction),
        run_delay_permille=permille(rank.run_delay_fraction),
        healthy_run_delay_permille=permille(rank.healthy_run_delay_fraction),
        onset=None
        if onset is None
        else (onset.iteration, onset.unix_ns, onset.reported_iteration, onset.before_ns, onset.after_ns),
        detail=_detail(rank, stacks.get(tuple(rank.stack), -1)) if with_detail else None,
        size_class=-1 if rank.size_class is None else rank.size_class,
    )
    rare = (rank.longest_share, rank.longest_growth, rank.healthy_cpu_fraction, rank.lasting_compute_ns)
    if all(value is None for value in rare):
        return cast(_NewRank, brief)  # an array without its last fields, which have defaults
    first = rank.first_stretch
    return _NewRank(
        **msgspec.structs.asdict(brief),
        longest_permille=permille(rank.longest_share),
        first_stretch=None if first is None else _sent_stretch(first),
        longest_growth_permille=permille(rank.longest_growth),
        healthy_cpu_permille=permille(rank.healthy_cpu_fraction),
        lasting_compute_us=in_units(rank.lasting_compute_ns, _US),
    )


def _detail(rank: RankSignals, stack: int) -> _Detail:
    return _Detail(
        rank.iteration_ns[-RECENT_ITERATIONS:],
        rank.compute_ns[-RECENT_ITERATIONS:],
        [max(0, wait) for wait in rank.wait_ns[-RECENT_ITERATIONS:]],
        rank.comms[:MAX_COMMS],
        rank.pairs[:MAX_PAIRS],
        rank.comms_left_out,
        rank.lost_records,
        rank.holes,
        _WORK.index(rank.work),
        permille(rank.load),
        stack,
        permille(rank.collecting_fraction),
        permille(rank.healthy_collecting_fraction),
        permille(rank.stall_share),
        rank.samples,
        rank.sends[:MAX_SENDS],
        permille(rank.healthy_compute_error),
        in_units(rank.slow_compute_ns, _US),
        permille(rank.slow_compute_error),
    )


def _shared(summary: Summary) -> tuple[list[_Shared], str]:
    """Return the ranks' micro-batches, and why they cannot move."""
    micros = {rank.rank: rank.micro for rank in summary.ranks[:MAX_RANKS] if rank.micro is not None}
    hindrance = next((micro.hindrance for micro in micros.values() if micro.hindrance), "")
    shared = [
        _Shared(rank, micro.per_rank, micro.share, in_units(micro.micro_ns, _US) if micro.timed else _UNTIMED)
        for rank, micro in micros.items()
    ]
    return shared, hindrance[:MAX_HINDRANCE]


def _micro(sent: _Shared, hindrance: str) -> MicroShare:
    micro_ns, timed = of_units(sent.micro_us, _US), sent.micro_us != _UNTIMED
    return MicroShare(per_rank=sent.per_rank, share=sent.share, micro_ns=micro_ns, timed=timed, hindrance=hindrance)


def _signals(
    sent: _NewRank, unix_ns: int, stacks: list[list[str]], troubles: _Troubles, micro: MicroShare | None
) -> RankSignals:
    detail, many = sent.detail, min(sent.iterations, RECENT_ITERATIONS)
    if detail is None:
        # A brief report has only medians: each stands for all of its iterations, so that judges read one form.
        detail = _Detail(
            _repeated(sent.iteration_us, many), _repeated(sent.compute_us, many), _repeated(sent.wait_us, many)
        )
    return RankSignals(
        rank=sent.rank,
        tracking=_TRACKING[sent.tracking],
        detailed=sent.detail is not None,
        iterations=sent.iterations,
        period_calls=sent.period_calls or None,
        last_call_unix_ns=None if sent.quiet_ms < 0 else unix_ns - sent.quiet_ms * _MS,
        iteration_ns=detail.iteration_ns,
        compute_ns=detail.compute_ns,
        wait_ns=detail.wait_ns,
        healthy_iteration_ns=of_units(sent.healthy_iteration_us, _US),
        healthy_noise=fraction(sent.healthy_noise_permille),
        healthy_compute_ns=of_units(sent.healthy_compute_us, _US),
        healthy_compute_error=fraction(detail.healthy_compute_error_permille),
        lasting_compute_ns=of_units(sent.lasting_compute_us, _US),
        slow_compute_ns=of_units(detail.slow_compute_us, _US),
        slow_compute_error=fraction(detail.slow_compute_error_permille),
        longest_share=fraction(sent.longest_permille),
        first_stretch=None if sent.first_stretch is None else _first_stretch(*sent.first_stretch),
        longest_growth=fraction(sent.longest_growth_permille),
        onset=None if sent.onset is None else _onset(*sent.onset),
        hang_deadline_ns=of_units(sent.hang_deadline_tenths, 100 * _MS),
        cpu_fraction=fraction(sent.cpu_permille),
        healthy_cpu_fraction=fraction(sent.healthy_cpu_permille),
        run_delay_fraction=fraction(sent.run_delay_permille),
        healthy_run_delay_fraction=fraction(sent.healthy_run_delay_permille),
        lost_records=detail.lost_records,
        holes=detail.holes,
        comms=detail.comms,
        pairs=detail.pairs,
        sends=detail.sends,
        comms_left_out=detail.left_out,
        work=_WORK[detail.work],
        size_class=of_units(sent.size_class, 1),
        load=fraction(detail.load_permille),
        collecting_fraction=fraction(detail.collecting_permille),
        healthy_collecting_fraction=fraction(detail.healthy_collecting_permille),
        stall_share=fraction(detail.stall_permille),
        samples=detail.samples,
        # The bytes may be another release's, or damaged: an index beyond the list is no stack, and no error.
        stack=stacks[detail.stack] if 0 <= detail.stack < len(stacks) else [],
        retries=troubles.retries,
        comm_error=troubles.comm_error,
        sight=_SIGHTS[troubles.sight] if troubles.sight < len(_SIGHTS) else "Full",
        micro=micro,
    )


def _sent_stretch(first: FirstStretch) -> tuple[int, int, int]:
    return first.place, round(_MILLION * first.share), round(_MILLION * first.call)


def _first_stretch(place: int, share: int, call: int) -> FirstStretch:
    return FirstStretch(place=place, share=share / _MILLION, call=call / _MILLION)


def _onset(iteration: int, unix_ns: int, reported_iteration: int, before_ns: int, after_ns: int) -> Onset:
    return Onset(
        iteration=iteration,
        unix_ns=unix_ns,
        reported_iteration=reported_iteration,
        before_ns=before_ns,
        after_ns=after_ns,
    )


def _repeated(level_us: int, many: int) -> list[int]:
    return [] if level_us < 0 else [level_us * _US] * many


# -- the launcher and the container ------------------------------------------------------------------------------------


def _throttle(signals: ThrottleSignals | None) -> _Throttle | None:
    if signals is None:
        return None
    return _Throttle(
        window_ms=round(1000 * signals.window_seconds),
        throttled_permille=permille(signals.throttled_fraction),
        healthy_throttled_permille=permille(signals.healthy_throttled_fraction),
    )


def _throttle_signals(sent: _Throttle | None) -> ThrottleSignals | None:
    if sent is None:
        return None
    return ThrottleSignals(
        window_seconds=sent.window_ms / 1000,
        throttled_fraction=fraction(sent.throttled_permille),
        healthy_throttled_fraction=fraction(sent.healthy_throttled_permille),
    )
