"""The encoding of a pod's report: small while healthy, exact where it matters, bounded whoever writes it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.wire.launcher.launch import FirstEnd, LaunchRank, LaunchStandby, LaunchStatus
from falcon_core.wire.launcher.printed import Printed, RankOutput
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinkReport, LinksReport
from falcon_core.wire.measurement.probe import MOST_CHANNELS, ChannelStart, ProbeReport, RankStart
from falcon_core.wire.network import NetworkSignals
from falcon_core.wire.reporting.anomalies import MAX_ANOMALIES, Anomaly
from falcon_core.wire.reporting.bounds import MAX_TEXT
from falcon_core.wire.reporting.groups import GroupChange, GroupReport, LostRank, RankEnd, RankGroup
from falcon_core.wire.reporting.messages import (
    RECENT_ITERATIONS,
    CommSignals,
    Onset,
    PairSignals,
    RankSignals,
    SentSignals,
    Summary,
    ThrottleSignals,
)
from falcon_core.wire.reporting.microbatches import MAX_HINDRANCE, MicroShare
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.reporting.samples import StackPlace, StackSamples
from falcon_core.wire.reporting.stretches import FirstStretch
from falcon_core.wire.saves.directory import DirectoryReport, LaunchDirectory, report_of

HELD = LaunchStandby(ready=1, wanted=2, why="too little memory is free")
NOW_NS = 1_763_800_000_000_000_000
replace = msgspec.structs.replace


def rank(number: int, **changes: Any) -> RankSignals:
    """Return a healthy rank of a large job: iterations of 4 s, a million of them done."""
    healthy = RankSignals(
        rank=number,
        tracking="Tracking",
        iterations=1_000_000 + number,
        period_calls=1_234,
        last_call_unix_ns=NOW_NS - 350_000_000,
        iteration_ns=[4_500_000_000] * 12 + [4_012_345_000] * 3 + [4_500_000_000],
        compute_ns=[3_412_345_000] * 16,
        wait_ns=[310_000_000] * 16,
        healthy_iteration_ns=4_000_000_000,
        healthy_noise=0.012,
        healthy_compute_ns=3_400_000_000,
        hang_deadline_ns=120_000_000_000,
        cpu_fraction=0.987,
        run_delay_fraction=0.021,
        healthy_run_delay_fraction=0.020,
    )
    return replace(healthy, **changes)


def process(number: int, **changes: Any) -> LaunchRank:
    running = LaunchRank(
        local_rank=number % 8,
        rank=number,
        pid=0,
        state="Running",
        started_unix_ns=NOW_NS - 90_000_000_000_000 + number * 3_000_000,
    )
    return replace(running, **changes)


def pod(ranks: list[RankSignals], processes: list[LaunchRank], **launch: Any) -> Summary:
    return Summary(
        pod_uid="p",
        sequence=100_000,
        unix_ns=NOW_NS,
        generation=3,
        launch=LaunchStatus(generation=3, dead_below=3, state="Running", oom_kills=0, ranks=processes, **launch),
        ranks=ranks,
        throttle=ThrottleSignals(window_seconds=5.0, throttled_fraction=0.0, healthy_throttled_fraction=0.001),
    )


def sent(summary: Summary, *detailed: int) -> Summary:
    """Return the report as it arrives."""
    return decode_summary(encode_summary(summary, detailed), "p")


def test_a_healthy_rank_costs_at_most_64_bytes_with_its_process() -> None:
    numbers = range(9_992, 10_000)
    whole = encode_summary(pod([rank(number) for number in numbers], [process(number) for number in numbers]), ())
    empty = encode_summary(pod([], []), ())
    assert (len(whole) - len(empty)) / len(numbers) <= 64
    assert len(empty) <= 64


def test_the_share_of_the_longest_stretch_arrives_to_a_permille() -> None:
    arrived = sent(pod([rank(0, longest_share=0.0314), rank(1), rank(2, longest_share=1.0)], []))
    assert [each.longest_share for each in arrived.ranks] == [0.031, None, 1.0]


def test_stretches_of_new_and_slow_ranks_arrive() -> None:
    new = rank(0, longest_share=0.5, first_stretch=FirstStretch(place=3, share=0.0314, call=4.25))
    slow = rank(1, longest_growth=1.5, healthy_cpu_fraction=0.93, lasting_compute_ns=3_500_000_000)
    arrived = sent(pod([new, slow], [])).ranks
    assert (arrived[0].first_stretch, arrived[0].longest_growth) == (new.first_stretch, None)
    assert (arrived[1].first_stretch, arrived[1].longest_growth, arrived[1].healthy_cpu_fraction) == (None, 1.5, 0.93)
    assert [each.lasting_compute_ns for each in arrived] == [None, slow.lasting_compute_ns]


def test_the_last_words_of_a_process_pass_and_are_bounded() -> None:
    words = "ValueError: " + "x" * MAX_TEXT
    ended = replace(process(0), state="Exited", exit_code=1, ended_unix_ns=NOW_NS, last_words=words)
    launch = sent(pod([], [ended, process(1)])).launch
    assert launch is not None
    assert [rank.last_words for rank in launch.ranks] == [words[:MAX_TEXT], ""]


@pytest.mark.parametrize("first", [FirstEnd(rank=3, local_rank=1, signal=9), FirstEnd(rank=70, exit_code=2), None])
def test_which_rank_a_launcher_names_passes(first: FirstEnd | None) -> None:
    ended = replace(process(0), state="Exited", exit_code=1, ended_unix_ns=NOW_NS, first_end=first)
    launch = sent(pod([], [ended])).launch
    assert launch is not None
    assert launch.ranks == [ended]


def test_a_brief_repeats_the_median_of_the_newest_five() -> None:
    (brief,) = sent(pod([rank(0)], [process(0)])).ranks
    assert not brief.detailed
    assert brief.iteration_ns == [4_012_345_000] * RECENT_ITERATIONS
    assert brief.compute_ns == [3_412_345_000] * RECENT_ITERATIONS
    assert brief.wait_ns == [310_000_000] * RECENT_ITERATIONS
    exact = replace(rank(0), detailed=False, iteration_ns=brief.iteration_ns)
    assert brief == exact, "nothing else of a healthy rank is lost"


def test_a_brief_claims_no_more_iterations_than_were_done() -> None:
    (brief,) = sent(pod([rank(0, iterations=3)], [process(0)])).ranks
    assert len(brief.iteration_ns) == len(brief.compute_ns) == 3


def test_who_has_just_been_silent_for_too_long_remains_so() -> None:
    deadline_ns = 10_049_999_999
    silent = rank(0, last_call_unix_ns=NOW_NS - deadline_ns - 1, hang_deadline_ns=deadline_ns)
    (brief,) = sent(pod([silent], [])).ranks
    assert brief.last_call_unix_ns is not None
    assert brief.hang_deadline_ns is not None
    assert NOW_NS - brief.last_call_unix_ns > brief.hang_deadline_ns


def test_what_is_not_known_stays_unknown() -> None:
    nothing = RankSignals(rank=0, tracking="Undetermined")
    assert sent(pod([nothing], [])).ranks == [replace(nothing, detailed=False)]


def test_detail_arrives_whole() -> None:
    slow = rank(
        5,
        onset=Onset(iteration=7, unix_ns=NOW_NS - 5, reported_iteration=12, before_ns=1, after_ns=2),
        comms=[
            CommSignals(
                comm=1 << 40, size=8, place=5, entered=9, finished=None, op=1, bytes=77, excess_ns=[5, 0], link_bytes=99
            )
        ],
        sends=[SentSignals(comm=1, peer=3, bytes=1 << 33)],
        pairs=[PairSignals(comm=1, peer=2, sending=True, entered=4, finished=3)],
        comms_left_out=2,
        work="Hidden",
        lost_records=3,
        holes=1,
    )
    assert sent(pod([slow], [process(5)]), 5).ranks == [slow]


def test_ends_of_processes_arrive_exactly() -> None:
    ended = process(
        1,
        state="Exited",
        exit_code=None,
        signal=9,
        core_dumped=True,
        oom_killed=True,
        ended_unix_ns=NOW_NS - 1,
        blocked_since_unix_ns=NOW_NS - 40_000_000_000,
    )
    launch = {"stuck": True, "untracked": "musl", "error": "no such file", "oom_kills_before": 2, "standby": HELD}
    status = sent(pod([], [process(0), ended], **launch)).launch
    assert status is not None
    assert status.ranks == [process(0), ended], "but for their pids, which mean nothing outside the pod"
    assert (status.stuck, status.untracked, status.error) == (True, "musl", "no such file")
    assert (status.oom_kills, status.oom_kills_before) == (0, 2)
    assert status.standby == HELD
    assert sent(pod([], [])).launch.standby is None  # type: ignore[union-attr]


def test_long_texts_are_cut_by_the_sender() -> None:
    status = sent(pod([], [], error="x" * 10_000)).launch
    assert status is not None
    assert status.error == "x" * MAX_TEXT


def fields(*detailed: int) -> list[Any]:
    """Return a good report as plain lists, to be spoilt."""
    return list(msgspec.msgpack.decode(encode_summary(pod([rank(0)], [process(0)]), detailed)))


def refused(report: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_summary(msgspec.msgpack.encode(report), "p")


def test_fields_of_a_newer_version_are_ignored() -> None:
    newer = [
        3,
        *fields()[1:],
        [],
        [],
        [],
        None,
        None,
        None,
        [],
        "",
        None,
        None,
        [],
        b"",
        None,
        None,
        [],
        None,
        [],
        "new",
    ]
    newer[6] = [[*newer[6][0], -1, None, -1, -1, -1, "new"]]
    assert decode_summary(msgspec.msgpack.encode(newer), "p") == sent(pod([rank(0)], [process(0)]))


def test_ends_of_the_generation_before_pass() -> None:
    summary = pod([rank(0)], [process(0)])
    ended = msgspec.structs.replace(sent(pod([], [process(0)])), sequence=0).launch
    assert ended is not None
    assert sent(msgspec.structs.replace(summary, ended=ended)).ended == ended
    assert sent(summary).ended is None


def test_a_check_of_the_machine_passes_and_is_bounded() -> None:
    summary = pod([], [])
    check = CheckReport(2, "", "torch", "8 × H200", {"bf16": 712_000_000, "copy": 3_900_000_000}, ["device 1: wrong"])
    assert sent(replace(summary, check=check)).check == check
    links = LinksReport(40000, True, [LinkReport(2, 5_000_000_000, 80, 250, 100, 950), LinkReport(1, why="refused")])
    linked = replace(check, skipped={"fp8": "none"}, links=links)
    assert sent(replace(summary, check=linked)).check == linked
    with pytest.raises(ValueError, match=r"links|length|Expected"):
        sent(replace(summary, check=replace(check, links=LinksReport(1, True, [LinkReport(1)] * 5))))
    with pytest.raises(ValueError, match="length"):
        sent(replace(summary, check=CheckReport(2, micros={str(number): 1 for number in range(17)})))


def test_a_smoke_test_passes_beside_a_check() -> None:
    summary = pod([], [])
    smoke = CheckReport(3, "", "falcon-launch", "1 × 96 CPUs", {"fp32": 812_000}, ["the CPU: its products are wrong"])
    assert sent(replace(summary, smoke=smoke)).smoke == smoke
    assert sent(replace(summary, smoke=smoke)).check is None
    assert sent(summary).smoke is None


def test_an_answer_to_a_probe_passes_and_is_bounded() -> None:
    summary, channel = pod([], []), ChannelStart(1, 4, 2, 1, 0, 1200, 3)
    links = LinksReport(40000, True, [LinkReport(2, 5_000_000_000, 80, 250, 100, 950)])
    probe = ProbeReport(7, links, [RankStart(2, [channel], 5)], True, False, 2100, False, "its time is over")
    assert sent(replace(summary, probe=probe)).probe == probe
    assert sent(summary).probe is None
    with pytest.raises(ValueError, match="length"):
        sent(replace(summary, probe=ProbeReport(7, ranks=[RankStart(2, [channel] * (MOST_CHANNELS + 1))])))
    with pytest.raises(ValueError, match=">= 0"):
        sent(replace(summary, probe=ProbeReport(7, ranks=[RankStart(2, [channel], -1)])))


def test_the_copies_of_a_folder_in_memory_pass_and_are_bounded() -> None:
    summary = pod([], [])
    said = LaunchDirectory(version=1, state="Following", generation=3, files=2, bytes=5, used_bytes=7, newest="a/b.pt")
    assert report_of(None) is None
    told = report_of(replace(said, newest_unix_ns=NOW_NS, linked=4, error="No space left"))
    assert told == sent(replace(summary, directory=told)).directory
    assert told is not None
    assert (told.word, told.newest_unix_ms) == ("Following", NOW_NS // 1_000_000)
    with pytest.raises(ValueError, match="length"):
        sent(replace(summary, directory=DirectoryReport(0, 1, newest="x" * 257)))


PRINTED = Printed(NOW_NS, "ValueError: bad (train.py:4 in main)", "ProgramError", True)


def test_errors_in_the_output_pass_and_a_healthy_report_has_no_byte_for_them() -> None:
    healthy = pod([rank(0)], [process(0)])
    telling = replace(healthy, output=[RankOutput(0, [PRINTED], 7, 1_000_000), RankOutput(3, [], 0, 5)])
    assert sent(telling).output == telling.output
    plain = fields()
    assert len(plain) == 8, "as in the release before"
    assert sent(healthy).output == []
    assert [*plain, []] == [*msgspec.msgpack.decode(encode_summary(telling, ()))[:8], []], "after all older fields"


def test_what_a_library_endured_passes_and_a_healthy_report_has_no_byte_for_it() -> None:
    tried = [rank(0), rank(1, retries=2), rank(2, comm_error=6), rank(3, sight="DriverFails")]
    arrived = sent(pod(tried, [])).ranks
    assert [(each.retries, each.comm_error) for each in arrived] == [(0, 0), (2, 0), (0, 6), (0, 0)]
    assert [each.sight for each in arrived] == ["Full", "Full", "Full", "DriverFails"]
    plain = fields()
    assert len(plain) == 8, "as in the release before"
    (healthy,) = decode_summary(msgspec.msgpack.encode([*plain, []]), "p").ranks
    assert (healthy.retries, healthy.comm_error) == (0, 0), "of an earlier agent with output"
    (newer,) = decode_summary(msgspec.msgpack.encode([*plain, [], [[0, 0, 0, 99]]]), "p").ranks
    assert newer.sight == "Full", "of a later agent, which sees reasons that are not known here"
    refused([*plain, [], [[0, -1, 0]]])


def test_the_detail_of_an_earlier_agent_says_nothing_of_its_work() -> None:
    earlier = fields(0)
    detail = earlier[6][0][16]
    assert [detail.pop() for _ in range(11)] == [-1, -1, -1, [], None, -1, -1, -1, -1, -1, 0]
    assert earlier[6][0].pop() == -1
    (found,) = decode_summary(msgspec.msgpack.encode(earlier), "p").ranks
    assert (found.detailed, found.work, found.load, found.size_class) == (True, "Fixed", None, None)


@pytest.mark.parametrize("load", [None, 0.8, 1.25])
def test_load_and_size_class_pass(load: float | None) -> None:
    sent = RankSignals(
        rank=3, tracking="Tracking", work="InBytes", load=load, size_class=127, stack=["step (train.py:40)"]
    )
    (brief,) = decode_summary(encode_summary(pod([sent], []), ()), "p").ranks
    assert (brief.load, brief.size_class) == (None, 127)
    (found,) = decode_summary(encode_summary(pod([sent], []), {3}), "p").ranks
    assert (found.load, found.size_class, found.stack) == (load, 127, ["step (train.py:40)"])


def test_micro_batches_pass_and_a_report_without_them_has_no_byte_for_them() -> None:
    why = "the model is on a GPU"
    shares = [MicroShare(per_rank=4, share=2, micro_ns=7_000_000), None, MicroShare(per_rank=4, share=4, timed=False)]
    ranks = [rank(number, micro=micro) for number, micro in enumerate(shares)]
    assert [rank.micro for rank in sent(pod(ranks, [])).ranks] == shares
    hindered = [rank(0, micro=MicroShare(per_rank=4, share=4, hindrance=why)), ranks[1]]
    assert [rank.micro for rank in sent(pod(hindered, [])).ranks] == [hindered[0].micro, None]
    bare = pod([rank(0), rank(1)], [])
    assert len(encode_summary(pod(ranks[:2], []), ())) - len(encode_summary(bare, ())) <= 24
    long = [rank(0, micro=MicroShare(per_rank=4, share=4, hindrance="x" * 1000))]
    (cut,) = sent(pod(long, [])).ranks
    assert cut.micro is not None
    assert len(cut.micro.hindrance) == MAX_HINDRANCE


def test_causes_in_the_program_pass_with_the_detail() -> None:
    samples = StackSamples(
        12, [StackPlace(["read (data.py:3)", "main (train.py:9)"], 11), StackPlace(["f (g.py:1)"], 1)]
    )
    slow = rank(3, collecting_fraction=0.312, healthy_collecting_fraction=0.0, stall_share=0.84, samples=samples)
    slow = replace(slow, healthy_compute_error=0.021, slow_compute_ns=312_000_000, slow_compute_error=0.007)
    assert sent(pod([slow], []), 3).ranks == [slow]
    brief = sent(pod([slow], [])).ranks[0]
    assert (brief.collecting_fraction, brief.stall_share, brief.samples) == (None, None, None)
    assert (brief.healthy_compute_error, brief.slow_compute_ns, brief.slow_compute_error) == (None, None, None)


def test_anomalies_pass_and_a_report_without_them_has_no_byte_for_them() -> None:
    leak = Anomaly("Memory", -1, lasted=3000, used=5 << 40, limit=1 << 43, left=7800, earliest=7000, latest=9000)
    odd = Anomaly("NotFinite", 3, "loss", lasted=4, iteration=41, text="step 41 loss nan", finite=9)
    newer = Anomaly("Soul", 0)
    healthy = pod([rank(0)], [])
    assert sent(replace(healthy, anomalies=[leak, odd, newer])).anomalies == [leak, odd, newer]
    many = replace(healthy, anomalies=[leak] * (MAX_ANOMALIES + 5))
    assert sent(many).anomalies == [leak] * MAX_ANOMALIES
    assert len(encode_summary(replace(healthy, network=NetworkSignals()), ())) < len(
        encode_summary(replace(healthy, network=NetworkSignals(), anomalies=[newer]), ())
    )


def test_an_earlier_agents_number_has_no_time_of_its_last_finite_value() -> None:
    before = ["NotFinite", 3, "loss", 4, 0, 0, 0, 0, 0, 41, "step 41 loss nan"]
    (read,) = msgspec.msgpack.decode(msgspec.msgpack.encode([before]), type=list[Anomaly])
    assert (read.text, read.finite) == ("step 41 loss nan", -1)


@pytest.mark.parametrize(
    "anomaly",
    [
        ["x" * 33, 0],
        ["Disk", -2],
        ["Disk", 0, "x" * 129],
        ["Disk", 0, "", -1],
        ["Disk", 0, "", 0, 1 << 63],
        ["Disk", 1.5],
    ],
)
def test_anomalies_beyond_the_bounds_are_refused(anomaly: list[Any]) -> None:
    long = [*fields(), [], [], [], None, None, None, [], "", None, None, [], b"", None, None]
    decode_summary(msgspec.msgpack.encode([*long, [["Disk", 0]]]), "p")
    refused([*long, [anomaly]])
    refused([*long, [["Disk", 0]] * (MAX_ANOMALIES + 1)])


GROUP = GroupReport(
    RankGroup(
        3,
        4,
        3,
        NOW_NS // 1_000_000,
        missing=[1],
        late=[0, 2],
        joining=[1],
        changes=[GroupChange(3, NOW_NS // 1_000_000, 4, 3, [LostRank(1, 77, "Gone")], [])],
    ),
    [RankEnd(1, 77, -9, NOW_NS // 1_000_000)],
)


@pytest.mark.parametrize("groups", [GROUP, GroupReport(None, GROUP.ends)])
def test_a_group_of_ranks_passes_and_a_report_without_one_has_no_byte_for_it(groups: GroupReport) -> None:
    plain = pod([rank(0)], [process(0)])
    assert sent(replace(plain, groups=groups)).groups == groups
    assert sent(plain).groups is None
    odd = replace(plain, anomalies=[Anomaly("Memory", 0)])
    assert len(msgspec.msgpack.decode(encode_summary(odd, ()))) == 23, "as an operator of an earlier release has it"
    assert sent(replace(odd, groups=groups)).anomalies == odd.anomalies


@pytest.mark.parametrize(
    "groups",
    [
        [[3, 4, 3, -1]],
        [[3, 4, 3, 0, [0] * 17]],
        [[1 << 63, 4, 3, 0]],
        [[3, 4, 1 << 31, 0]],
        [[3, 4, 3, 0, [], [], [], [[3, 0, 4, 3]] * 9]],
        [[3, 4, 3, 0, [], [], [], [[3, 0, 4, 3, [[0, 0, "x" * 17]]]]]],
        [None, [[0, 0, 1 << 31]]],
        [None, [[0, 0, 0]] * 17],
    ],
)
def test_a_group_beyond_the_bounds_is_refused(groups: list[Any]) -> None:
    whole = msgspec.msgpack.decode(encode_summary(replace(pod([], []), groups=GROUP), ()))
    refused([*whole[:-1], groups])
