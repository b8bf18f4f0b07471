"""Define the files between the agent and ``falcon-launch`` in the run directory (``/falcon/run``, in memory).

Each side owns one folder and writes nowhere else; every file appears by rename, so a reader sees a whole one (only
rings and output grow in place)::

    agent/plan             what to run: ``key=value`` lines (a C++ reader without a JSON library)
    agent/alive            touched every second: while it is fresh, the launcher waits for the agent's word
    agent/control          the shim's control file (wire.control)
    agent/checkpoint       JSON, for the script's client: {"generation": …, "number": …} of the checkpoint that all
                           ranks are to save; number 0: none
    agent/copied           JSON, for the script's client: {"on": whether copies are made, "ranks": {rank: sequence of
                           its newest checkpoint that another pod has, too}}
    agent/microbatches     JSON, for the client of rank 0: the shares that are wanted (wire.microbatches)
    agent/links            JSON (wire.check_links.PodLinks): the links that the executor is to measure now
    agent/probe            likewise, of the executor that runs while the ranks do: they stand still now
    agent/stacks           any text: a new text asks the launcher for the Python stacks of the ranks
    agent/samples          a time and process ids: a new text asks it for the stack of the main thread of these
    launch/status.json     LaunchStatus, written at every change
    launch/counters.json   LaunchCounters, written every second
    launch/output.<local>  that process's newest output (wire.output); made again with each generation
    launch/printed.<n>     an empty file that changes its name when a process has printed: at most five times a
                           second, and five times at once after a quiet second
    launch/microbatches.<local>   what that rank's script says of its micro-batches (wire.microbatches)
    launch/group.json      what the pod's own launcher says of its ranks' group (wire.groups)
    launch/directory.json  how far the copies of the folder in memory are (wire.directory)
    launch/check           what the newest measurement of the machine printed (agent/falcon_bench)
    launch/smoke           what the newest smoke test printed, in the same form (``falcon-launch smoke``)
    launch/links           JSON (wire.check_links.LinksPrinted): where the executor waits for its peers, and what the
                           links were measured to be (agent/falcon_bench/links.py)
    launch/probe           likewise, of the executor that runs while the ranks do
    launch/rings/g<generation>-r<rank>-<pid>.ring   one ring per process that makes collectives (wire.ring)
    launch/rings.json      LaunchRings: which of them are the ranks' own
    launch/standby/imports.<local>   what that rank has imported (agent/falcon_start/imports.py), for its standby
    launch/stacks/<pid>    the Python stacks of a process's threads, as ``faulthandler`` writes them when asked
    launch/stacks/<pid>.sample   the stack of its main thread, likewise
    launch/stacks/<pid>.notes    whether its program has ended, and for how long Python's garbage collector has stopped
                           it (wire.notes, falcon_start/notes.py)

The two folders are volumes of their own, and each side sees the other's as read-only: a training process cannot write
what its agent says, under whichever user it runs, nor take the memory that the agent writes with.

A plan is desired state. The launcher compares it with what runs:

- ``Run``: processes of an older generation are killed first, then ``procs`` ranks of this generation are started;
- ``Stop``: every process of an older generation is killed, then ``dead_below`` becomes ``generation``: acknowledged. If
  ``check`` is a new number, the machine is measured then. If ``check_links`` is 1, an executor waits afterwards for
  ``agent/links`` to have that number, and measures the links; ``Run`` ends a measurement that has not ended yet;
- ``Run`` with ``links``: while the ranks run, an executor of that number waits for ``agent/probe`` to have it, and
  measures the links; another number, 0 among them, ends it;
- either: if ``smoke`` is a new number, the smoke test begins when no older process is left, and runs during the start;
- ``Finish``: everything is killed and the launcher exits with ``exit_code``.

A generation lower than the newest one seen is ignored. When its ranks have ended, the launcher reports and waits for
the next plan; only if ``agent/alive`` goes stale for 60 s does it end by itself, with the first failing rank's exit
code. A signal that ends the pod is passed on, first to the ranks' process groups, then to daemons that outlive them;
the exit code is the first failing rank's, or 128 + the signal. Where all ranks had ended before the signal came, the
state stays ``Exited``, and the exit code is 0 if all of them ended with 0 (128 + the signal where a folder in memory is
copied behind: its report says whether the copies are complete). So state and exit code both show that the ranks ended
by themselves.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from falcon_core.wire.network import NetworkCounters

LAUNCH_VERSION = 1
AGENT_DIR = "agent"
LAUNCH_DIR = "launch"
PLAN_FILE = "agent/plan"
ALIVE_FILE = "agent/alive"
CONTROL_FILE = "agent/control"
PROBE_ASKED_FILE = "agent/probe"
PROBE_FILE = "launch/probe"
CHECKPOINT_FILE = "agent/checkpoint"
COPIED_FILE = "agent/copied"
MICROBATCHES_FILE = "agent/microbatches"
IMPORTS_FILE = "agent/imports"  # of a pod that stands by without ranks
IMPORTED_FILE = "launch/standby/imports.0"  # of local rank 0
MICROBATCH_REPORT = "launch/microbatches."  # and the local rank
STATUS_FILE = "launch/status.json"
COUNTERS_FILE = "launch/counters.json"
CHECK_FILE = "launch/check"
SMOKE_FILE = "launch/smoke"
DIRECTORY_FILE = "launch/directory.json"
GROUP_FILE = "launch/group.json"
LINKS_ASKED_FILE = "agent/links"
LINKS_FILE = "launch/links"
RINGS_FILE = "launch/rings.json"
OUTPUT_FILE = "launch/output."  # and the local rank
RINGS_DIR = "launch/rings"
STACKS_ASKED_FILE = "agent/stacks"
SAMPLES_ASKED_FILE = "agent/samples"
STACKS_DIR = "launch/stacks"
SAMPLE_SUFFIX = ".sample"

Phase = Literal["Run", "Stop", "Finish"]
Standby = Literal["None", "Imports", "Processes"]


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan that the launcher of one pod carries out."""

    generation: int
    phase: Phase
    world_size: int = 0
    nnodes: int = 0
    node_rank: int = 0
    procs: int = 0
    first_rank: int = 0  # this pod's local rank 0
    master_addr: str = ""
    master_port: int = 0
    retries: int = 0  # of a communicator's set-up call, in place
    standby: Standby = "None"  # what waits for the next generation, one for each rank; Stop: in place of each rank
    next_master_port: int = 0  # of the next generation, for standbys that run their program; 0: not known
    settled: int = 0  # 1: training runs as it will, and standbys may be made
    check: int = 0  # Stop only: the number of the measurement that is wanted; 0: none
    check_ms: int = 0  # under load
    check_links: int = 0  # 1: an executor waits for the pod's peers afterwards
    links: int = 0  # Run only: the number of the executor of the links that runs with the ranks; 0: none is wanted
    smoke: int = 0  # not Finish: the number of the smoke test that is wanted; 0: none
    exit_code: int = 0  # Finish only


class FirstEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the rank that failed first, as a launcher of the user's own reports it."""

    rank: int  # in the whole job, as that launcher counts
    local_rank: int | None = None  # None: it does not say
    exit_code: int | None = None  # None after a signal
    signal: int | None = None


class LaunchRank(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the current generation (``Own`` launchers: their only command, as local rank 0)."""

    local_rank: int
    rank: int
    pid: int
    state: Literal["Running", "Exited"]
    exit_code: int | None = None  # None while it runs, and after a signal
    signal: int | None = None
    core_dumped: bool = False
    oom_killed: bool = False  # the cgroup counted an OOM kill that explains this end: of this process, or of one below
    started_unix_ns: int
    ended_unix_ns: int | None = None
    last_words: str = ""  # of a process that failed: why, by its own output; the agent adds it
    first_end: FirstEnd | None = None  # of a launcher that failed: the rank below it that failed first; likewise
    blocked_since_unix_ns: int | None = None  # a thread is in uninterruptible sleep since then, for 30 s at least


class LaunchStandby(msgspec.Struct, frozen=True, kw_only=True):
    """The interpreters that wait for the next generation."""

    ready: int
    wanted: int
    why: str = ""  # why there are fewer, or why they have imported less; empty: nothing is known to be missing


class LaunchCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The newest measurement of the machine. What it printed stands in ``CHECK_FILE``."""

    number: int  # the plan's
    running: bool
    error: str = ""  # why nothing was measured; empty: it was
    linking: bool = False  # the executor of the links lives
    links_error: str = ""  # why there is none, or how it failed


class LaunchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher's report on what it has done."""

    version: int = LAUNCH_VERSION
    generation: int  # newest generation acted upon; 0 before the first plan
    dead_below: int  # no process of any generation below this one is left
    state: Literal["Idle", "Running", "Stopping", "Stopped", "Exited"]
    untracked: str | None = None  # why no rank is seen (a musl program, or a static one that has started no other)
    stuck: bool = False  # a process survived SIGKILL for 30 s
    error: str | None = None  # the command could not be started
    oom_kills: int | None = None  # in the container since this generation began; None: unknown
    oom_kills_before: int | None = None  # in the container before this generation began; None: unknown
    standby: LaunchStandby | None = None  # None: none are wanted
    check: LaunchCheck | None = None  # None: nothing was measured
    smoke: LaunchCheck | None = None  # the newest smoke test, which printed into ``SMOKE_FILE``; likewise
    links: LaunchCheck | None = None  # the newest executor of links that ran with the ranks: ``PROBE_FILE``; likewise
    ranks: list[LaunchRank] = []


def makes_standbys(launch: LaunchStatus | None) -> bool:
    """Check whether a launcher makes standbys, or will make them; it does not if it reports why there are fewer."""
    held = launch.standby if launch is not None else None
    return held is not None and held.ready < held.wanted and not held.why


class CgroupCounters(msgspec.Struct, frozen=True, kw_only=True):
    """The training container's own cgroup, v1 or v2; None is unknown, never zero. Totals since the container began."""

    nr_periods: int | None = None
    nr_throttled: int | None = None
    throttled_ns: int | None = None
    cpu_usage_ns: int | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_cache_bytes: int | None = None  # among memory_bytes: what the kernel can give back
    pids: int | None = None  # threads count, too
    pids_limit: int | None = None
    oom_kills: int | None = None
    cpu_pressure_some_us: int | None = None


class RankCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's process tree, summed over its threads (/proc/PID/task/*/schedstat)."""

    local_rank: int
    cpu_ns: int | None = None
    run_delay_ns: int | None = None  # runnable, but waiting for a core
    collected_ns: int | None = None  # that Python's garbage collector took; the agent adds it
    open_files: int | None = None  # of the process of the tree that is nearest to its limit
    open_files_limit: int | None = None


class VolumeCounters(msgspec.Struct, frozen=True, kw_only=True):
    """A file system that the training container can write to."""

    path: str
    bytes: int
    limit_bytes: int  # what an ordinary user may fill
    files: int  # inodes
    limit_files: int  # 0: the file system does not count them


class LaunchCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that only the training container can see."""

    version: int = LAUNCH_VERSION
    unix_ns: int
    cgroup: CgroupCounters
    ranks_unix_ns: int | None = None  # when the ranks' counters were read, if not with the cgroup's
    collected_unix_ns: int | None = None  # when the agent added the collections
    network: NetworkCounters | None = None  # the agent adds it
    volumes: list[VolumeCounters] = []  # read each ten seconds
    ranks: list[RankCounters] = []


class LaunchRings(msgspec.Struct, frozen=True, kw_only=True):
    """The rings of the ranks' own processes, by file name; other rings belong to helpers or to the dead."""

    version: int = LAUNCH_VERSION
    own: list[str] = []


def render_plan(plan: LaunchPlan) -> str:
    """Write the text of ``agent/plan``."""
    fields = msgspec.structs.asdict(plan)
    return "".join(f"{key}={value}\n" for key, value in {"version": LAUNCH_VERSION, **fields}.items())
