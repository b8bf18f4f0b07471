"""Run the agent's loop: read the launcher's files when they change, read the rings each second, and report news.

Records that are read together cost less: with eight ranks of 2 000 calls a second, reading them ten times a second
took 5 % of a core.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from pathlib import Path

import msgspec
import structlog

from falcon_agent.checkpoint.on_demand import Answer
from falcon_agent.checkpoint.replication import Copying
from falcon_agent.checkpoint.store import Store
from falcon_agent.launch.import_record import ImportRecord
from falcon_agent.launch.measurements import Checks, Smoke
from falcon_agent.launch.notify import News
from falcon_agent.launch.plan import links_for, newer, plan_for
from falcon_agent.launch.run_dir import RunDir
from falcon_agent.node import nvml
from falcon_agent.node.gpu_series import GpuSeries
from falcon_agent.output.last_words import Ends
from falcon_agent.output.monitor import Output
from falcon_agent.output.uncaught import Uncaught
from falcon_agent.pause.probe import Probing
from falcon_agent.reporting.schedule import ReportSchedule
from falcon_agent.reporting.stream import Reporter
from falcon_agent.rings.tracker import Tracker
from falcon_agent.service import begin
from falcon_agent.settings import EXIT_CONFIG, Settings, load_settings
from falcon_agent.stacks.hang_stacks import Stacks
from falcon_agent.stacks.sampler import Samples
from falcon_agent.telemetry.garbage_collections import with_collections
from falcon_agent.telemetry.network import read_counters, read_traffic
from falcon_agent.telemetry.resources import Resources
from falcon_agent.telemetry.series_feed import SeriesFeed
from falcon_core.anomalies.output_numbers import SHIPPED, usable_metrics
from falcon_core.errors.judge import ErrorRules, Judge, decode_rules, usable_judge
from falcon_core.errors.last_words import printed_text
from falcon_core.signals.rank.warm_up import warm_up
from falcon_core.text import clip
from falcon_core.wire.launcher.imports import Imports
from falcon_core.wire.launcher.launch import LAUNCH_DIR, LaunchCounters, LaunchPlan, LaunchStatus
from falcon_core.wire.measurement.probe import ProbeOrder
from falcon_core.wire.network import NetworkCounters
from falcon_core.wire.reporting import groups
from falcon_core.wire.reporting.anomalies import MAX_ANOMALIES, MAX_TEXT, Anomaly, OutputMetric
from falcon_core.wire.reporting.messages import DetailRequest, Plan, RankSignals, Summary
from falcon_core.wire.reporting.microbatches import MicrobatchOrder
from falcon_core.wire.saves.checkpoint import Held, Loaded
from falcon_core.wire.saves.directory import DirectoryReport, report_of
from falcon_core.wire.saves.peers import Peers
from falcon_core.wire.series import Phase

READ_SECONDS = 1.0  # between two reads of the rings, and looks at what they say
MEMORY_SECONDS = 5.0
_log = structlog.get_logger()


class Agent:
    """The agent of one pod."""

    def __init__(self, settings: Settings) -> None:
        self._settings, config = settings, settings.config
        run_dir = Path(config.run_dir)
        self._run_dir = RunDir(run_dir)
        warm_up()
        self._tracker = Tracker(run_dir, self._run_dir.load_memory(), cpu_only=config.cpu_only)
        self._ends = Ends(self._run_dir, self._judge)
        self._metrics: tuple[OutputMetric, ...] = SHIPPED
        self._output = Output(
            run_dir,
            lambda: self._judge().classifier,
            metrics=lambda: self._metrics,
            iterations=self._tracker.iterations,
        )
        self._resources = Resources()
        self._series = SeriesFeed(settings.pod_uid)
        self._gpu_series = GpuSeries(nvml.load, config.procs) if config.reads_gpus else None
        self._saved: list[tuple[int, int]] = []  # rank and step of each checkpoint in the pod's memory
        self._uncaught = Uncaught(self._run_dir)
        self._stacks = Stacks(self._run_dir)
        self._samples = Samples(self._run_dir, cpu_only=config.cpu_only)
        self._slow: dict[int, int] = {}  # process ids, by rank, of those that compute longer than they did
        self._checks = Checks(self._run_dir)
        self._smoke = Smoke(self._run_dir)
        self._imports = ImportRecord(self._run_dir)
        self._probing = Probing(self._run_dir, self._tracker)
        self._schedule = ReportSchedule(config.job_uid)
        self._store = (
            Store(Path(config.checkpoint_dir), config.procs, config.checkpoint_bytes)
            if config.checkpoint_bytes
            else None
        )
        self._answer = Answer()
        self._store_made = self._store is None
        self._copying = self._copies_of(self._store) if self._store is not None and config.copies_bytes else None
        self._fetched_for = 0  # the newest generation that may run as far as copies go
        self._fetching: asyncio.Task[None] | None = None
        self._plan: Plan | None = None
        self._rules = ErrorRules()
        self._request: DetailRequest | None = None
        self._order: MicrobatchOrder | None = None
        self._probe: ProbeOrder | None = None
        self._settled = 0  # the newest generation whose ranks train
        self._sequence = 0
        self._network = (0, NetworkCounters())  # read with the launcher's counters of that time
        self._last_status: LaunchStatus | None = None
        self._news: News | None = None
        self._directory: DirectoryReport | None = None
        self._groups: groups.GroupReport | None = None

    async def run(self) -> None:
        """Run until SIGTERM; training goes on without the agent."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        # The shim reads this file, so it must be there before any rank starts.
        self._run_dir.write_control()
        # An earlier life of this agent may have left the gates of a pause armed.
        self._probing.take_over()
        self._run_dir.touch_alive()
        _log.info("agent started", pod=self._settings.pod, node=self._settings.node, job=self._settings.config.job)
        takers = (self.take_request, self.take_order, self.take_peers, self.take_imports, self.take_probe)
        reporter = Reporter(self._settings, self.take_plan, *takers)
        tasks = [
            asyncio.create_task(reporter.run()),
            asyncio.create_task(reporter.log_connection()),
            asyncio.create_task(self._watch(reporter)),
        ]
        # Touching all pages takes seconds for a large state; the tasks answer the operator meanwhile.
        if self._store is not None:
            await self._make(self._store)
        stopped = asyncio.create_task(ended.wait())
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stopped in done and self._copying is not None:
            await self._copying.finished()  # the tasks go on meanwhile: the operator hears who has the copies
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)
        for task in done - {stopped}:
            task.result()  # a defect of the agent: end with its traceback; the kubelet restarts the agent

    def take_plan(self, plan: Plan) -> None:
        """Take over the job's plan, and write this pod's plan for the launcher."""
        if not newer(plan, self._plan):
            return
        self._plan = plan
        self._rules = decode_rules(plan.errors)
        self._metrics = usable_metrics(plan.metrics)
        self._tracker.detection = plan.detection
        self._tracker.verify_every = plan.verify_every
        if self._store_made:
            self._write_plan(plan)
        self._take_probe(plan)

    async def _make(self, store: Store) -> None:
        """Make the ranks' checkpoint buffers, and only then let the launcher have a plan: the ranks look for them."""
        await asyncio.to_thread(store.make)
        self._store_made = True
        if self._copying is not None:
            self._copying.start()
        if self._plan is not None:
            self._write_plan(self._plan)

    def _write_plan(self, plan: Plan) -> None:
        self._run_dir.write_wanted_checkpoint(plan.generation, plan.checkpoint, plan.saved_before_ms)
        # The executor of links runs independently of the plan, and needs its order even if the plan stays the same.
        links = links_for(plan, self._settings.pod_uid)
        if links is not None:
            self._run_dir.ask_for_links(links)
        mine = plan_for(
            plan,
            self._settings.pod_uid,
            settled=self._settled >= plan.generation,
            has_imports=self._imports.known,
            probe=self._probe_of(plan),
        )
        # Ranks look for their checkpoints as soon as they start, so the copies have to be there before.
        if mine.phase == "Run" and self._store is not None and not self._runs(mine.generation):
            self._store.forget_others(mine.first_rank)
            if self._waits_for_copies(mine):
                return
        if self._run_dir.write_plan(mine):
            _log.info("plan", generation=mine.generation, phase=mine.phase, first_rank=mine.first_rank)

    def _copies_of(self, store: Store) -> Copying:
        settings = self._settings
        return Copying(
            store,
            settings.config,
            pod_uid=settings.pod_uid,
            on_copied=self._run_dir.write_copied,
            were_on=self._run_dir.makes_copies(),
        )

    def _runs(self, generation: int) -> bool:
        """Check whether the ranks of a generation were started, and use their buffers.

        A launcher that has stopped for a generation still lists the ranks of the generation before it.
        """
        status = self._run_dir.status()
        return status is not None and status.generation >= generation and status.state in ("Running", "Exited")

    def _waits_for_copies(self, mine: LaunchPlan) -> bool:
        """Check whether the ranks wait for the copies of their checkpoints, and begin to fetch them, once."""
        if self._copying is None or self._fetched_for >= mine.generation:
            return False
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.create_task(self._fetch(self._copying, mine))
        return True

    async def _fetch(self, copying: Copying, mine: LaunchPlan) -> None:
        await copying.fetched(mine.generation, mine.first_rank)
        self._fetched_for = mine.generation
        if self._plan is not None:
            self._write_plan(self._plan)

    def take_peers(self, peers: Peers) -> None:
        """Take over who keeps copies of whose checkpoints."""
        if self._copying is not None:
            self._copying.take(peers)

    def take_imports(self, imports: Imports) -> None:
        """Take over what the job's ranks import, for a pod that stands by without a replica."""
        if self._imports.take(imports) and self._plan is not None and self._store_made:
            self._write_plan(self._plan)

    def take_probe(self, order: ProbeOrder) -> None:
        """Take over what is to be measured while the ranks stand still, and where they stop."""
        self._probe = order
        if self._plan is not None:
            self._take_probe(self._plan)

    def _take_probe(self, plan: Plan) -> None:
        """Take over the order for the plan's generation; of an order and its plan, either may come first."""
        order = self._probe
        if order is None or order.generation != plan.generation:
            return
        replica = next((each.replica for each in plan.members if each.pod_uid == self._settings.pod_uid), None)
        if replica is None:
            return
        if self._probing.take(order, replica, time.monotonic()):
            self._write_plan(plan)
            if self._news is not None:
                self._news.wake()  # ranks that stand still wait for what comes of it

    def _probe_of(self, plan: Plan) -> int:
        return self._probing.wanted if plan.phase == "Run" else 0

    def _settle(self, status: LaunchStatus | None) -> None:
        """Report to the launcher, once a generation, that its ranks train: standbys may be made now."""
        plan = self._plan
        if plan is None or plan.standby == "None" or status is None or self._settled >= plan.generation:
            return
        if status.generation == plan.generation and self._tracker.trains(status.generation, len(status.ranks)):
            self._settled = status.generation
            self._write_plan(plan)

    def take_request(self, request: DetailRequest) -> None:
        """Take over which ranks the operator wants to know more of. An earlier leader's request is ignored."""
        if self._request is None or request.epoch >= self._request.epoch:
            self._request = request

    def take_order(self, order: MicrobatchOrder) -> None:
        """Take over how micro-batches are shared out. The order of an earlier leader or generation is ignored."""
        known = self._order
        if known is None or (order.epoch, order.generation) >= (known.epoch, known.generation):
            self._order = order
            self._run_dir.write_microbatches(order)

    async def _watch(self, reporter: Reporter) -> None:
        with News(self._run_dir.path / LAUNCH_DIR) as news:
            self._news = news
            await self._look_on(reporter, news)

    async def _look_on(self, reporter: Reporter, news: News) -> None:
        read = remembered = 0.0
        urgent = False
        while True:
            now = time.monotonic()
            # Rings are read at their own pace, however often the launcher writes: each read has a cost of its own.
            if reads := now - read >= READ_SECONDS:
                read = now
                urgent = self._tracker.poll(self._run_dir.rings()) or urgent
                urgent = self._stacks.look(self._standing(), now) or urgent
                self._slow = self._tracker.computing_longer()
                self._run_dir.sample(
                    self._tracker.sample_every(probed=bool(self._probing.wanted)),
                    self._tracker.device_cycle_calls(),
                    self._tracker.verify_every,
                )
            # The launcher's files are cheap to look at, and what they say is often urgent.
            status = self._run_dir.status()
            urgent = self._look_at(status, now, reads=reads) or urgent
            self._settle(status)
            # Reports go out when something is urgent, and otherwise at the moment that all pods of the job share.
            if urgent or reads or self._schedule.is_due(time.time_ns()):
                self._run_dir.touch_alive()
                counters = self._counters()
                self._tracker.feed_counters(counters)
                if reads:
                    self._feed_series(reporter, status, counters, now)
                urgent = self._look_at_resources(counters, status, now) or urgent
                self._speak(reporter, status, urgent=urgent, now=now)
                urgent = False
            if now - remembered >= MEMORY_SECONDS:
                remembered = now
                self._run_dir.save_memory(self._tracker.memory())
            now = time.monotonic()
            # Sleep until the earliest of what is due, or until the launcher writes.
            moment, sample = self._schedule.seconds_to_due(time.time_ns()), self._samples.seconds_to_next(now)
            due = min(read + READ_SECONDS - now, moment, sample, self._probing.seconds_to_next())
            await news.wait(max(0.0, due))

    def _look_at(self, status: LaunchStatus | None, now: float, *, reads: bool) -> bool:
        """Look at all that may be news at once; ``reads``: the rings have just been read."""
        news = (
            self._listen(status, now),
            status != self._last_status,
            self._checks.look(status),
            self._samples.look(self._slow, now),
            self._smoke.look(status, now),
            self._look_at_probe(status, reads=reads),
            self._look_at_directory(status),
            reads and self._look_at_group(status),
            reads and self._answer.look(self._plan, self._held, now),
        )
        self._last_status = status
        return any(news)

    def _look_at_probe(self, status: LaunchStatus | None, *, reads: bool) -> bool:
        """Go on with the probe that is on; return whether there is something new to report."""
        changed = self._probing.look(status, time.monotonic(), reads=reads)
        if changed and self._plan is not None:
            self._write_plan(self._plan)  # the executor may be wanted no more
        return changed

    def _counters(self) -> LaunchCounters | None:
        """Read the launcher's counters, the collections that the ranks' interpreters count, and the pod's network."""
        counters = self._run_dir.counters()
        if counters is None:
            return None
        # Read in the same moment as the launcher's counters: rates divide both by one time.
        if counters.unix_ns != self._network[0]:
            self._network = (counters.unix_ns, read_counters())
        counters = msgspec.structs.replace(counters, network=self._network[1])
        return with_collections(counters, self._tracker.processes(), self._run_dir, time.time_ns())

    def _look_at_resources(self, counters: LaunchCounters | None, status: LaunchStatus | None, now: float) -> bool:
        """Look at what the container uses; return whether something begins to run out, or no longer does."""
        generation, ranks = _generation(status), len(status.ranks) if status is not None else 0
        return self._resources.feed(counters, generation, trains=self._tracker.trains(generation, ranks), now=now)

    def _feed_series(
        self, reporter: Reporter, status: LaunchStatus | None, counters: LaunchCounters | None, now: float
    ) -> None:
        """Keep what has just been read, and send what is due, while a service reads series."""
        gpus = self._gpu_series.look(wanted=reporter.reads_series) if self._gpu_series is not None else []
        if not reporter.reads_series:
            self._series.stop()
            return
        generation, unix_seconds = _generation(status), time.time()
        newest, printed = self._tracker.newest(), self._output.drain(generation)
        if not self._series.keeps:  # what came before the first window belongs to none
            newest, printed = {}, {}
        ranks = {rank.local_rank: rank.rank for rank in status.ranks} if status is not None else {}
        self._series.begin(generation, ranks, now, unix_seconds)
        self._series.take_counters(counters, read_traffic())
        self._series.take_iterations(newest)
        self._series.take_output(printed)
        self._series.take_gpus(gpus)
        for chunk in self._series.end(self._phase(status, now), now, unix_seconds):
            reporter.send_series(chunk)

    def _phase(self, status: LaunchStatus | None, now: float) -> Phase:
        """Return what the ranks do now, as far as the agent knows."""
        saved = [(held.rank, held.step) for held in self._held()] if self._store is not None else []
        saves = saved != self._saved or bool(self._plan is not None and self._plan.checkpoint)
        self._saved = saved
        generation, ranks = _generation(status), len(status.ranks) if status is not None else 0
        phase = self._series.windows.phase(status, trains=self._tracker.trains(generation, ranks), now=now)
        if phase in (Phase.TRAINING, Phase.WARM_UP):
            if self._probing.wanted:
                return Phase.PAUSE
            if saves:
                return Phase.CHECKPOINT
        return phase

    def _anomalies(self, status: LaunchStatus | None, generation: int, now: float) -> list[Anomaly]:
        """Return what is odd about the pod's own ranks: what runs out, and numbers of the output that are none."""
        ranks = {rank.local_rank: rank.rank for rank in status.ranks} if status is not None else {}
        numbers = [
            Anomaly(
                kind="NotFinite",
                rank=ranks[local_rank],
                metric=each.name,
                lasted=round(max(0.0, now - each.seconds)),
                iteration=-1 if each.iteration is None else each.iteration,
                text=clip(printed_text(each.line.decode(errors="replace")), MAX_TEXT),
                # Rounded up: what the operator takes for proven must not be newer than it is.
                finite=-1 if each.finite_seconds is None else math.ceil(max(0.0, now - each.finite_seconds)),
            )
            for local_rank, standing in self._output.not_finite(generation).items()
            for each in standing
            if local_rank in ranks
        ]
        # Where the bound cuts the list, it leaves forecasts out, and not losses that are no number.
        return (numbers + self._resources.anomalies(generation, ranks, now))[:MAX_ANOMALIES]

    def _look_at_directory(self, status: LaunchStatus | None) -> bool:
        """Read how far the copies behind are; return whether the news is urgent: no rank runs."""
        before, self._directory = self._directory, report_of(self._run_dir.directory())
        return self._directory != before and (status is None or status.state != "Running")

    def _look_at_group(self, status: LaunchStatus | None) -> bool:
        """Read how the ranks' group stands; return whether that is news. Groups may change many times a second."""
        before, self._groups = self._groups, groups.report_of(self._run_dir.group(), _generation(status))
        return self._groups is not None and self._groups != before

    def _listen(self, status: LaunchStatus | None, now: float) -> bool:
        """Read what the processes print, and whether an exception has ended a program; return whether there is news."""
        if self._plan is None:
            return False  # the job's own rules are not known yet; the text stays where it is
        news = self._output.look(status, now)
        # While processes of the generation before end, the launcher's status is of the next one already.
        raised = self._output.raised(_generation(status))
        return (bool(raised) and self._uncaught.look(_generation(status), raised, self._processes(status))) or news

    def _processes(self, status: LaunchStatus | None) -> dict[int, list[int]]:
        """Return the process ids, by local rank, of what the launcher has started and of what has made calls."""
        started = {rank.local_rank: [rank.pid] for rank in status.ranks} if status is not None else {}
        for local_rank, pid in self._tracker.processes().items():
            started.setdefault(local_rank, []).append(pid)
        return started

    def _standing(self) -> dict[int, int]:
        """Return the process ids, by rank, of those whose stacks may show why they make no call."""
        return self._tracker.silent() | self._tracker.quiet_since(self._output.raised())

    def _speak(self, reporter: Reporter, status: LaunchStatus | None, *, urgent: bool, now: float) -> None:
        """Report, if a report is due."""
        asked = self._asked(_generation(status))
        may_matter = self._tracker.may_matter()
        if not self._schedule.is_needed(asked=asked, may_matter=may_matter, urgent=urgent, unix_ns=time.time_ns()):
            return
        summary = self.summary(status)
        detection = self._tracker.detection
        detailed = self._schedule.detail_due(summary, asked=asked, detection=detection, urgent=urgent, now=now)
        if detailed is not None:
            self._sequence += 1
            # The operator finds the first of several failures by how far each rank had come in its communicators.
            reporter.report(summary, detailed | self._ended(status), urgent=urgent)

    def _judge(self) -> Judge:
        """Return the judge of errors, by the job's rules as far as the plan is known."""
        return usable_judge(self._rules)

    def _asked(self, generation: int) -> frozenset[int]:
        request = self._request
        return frozenset(request.ranks) if request is not None and request.generation == generation else frozenset()

    def _ended(self, status: LaunchStatus | None) -> frozenset[int]:
        """Return the ranks whose processes have ended; with a launcher of the user's, all ranks below it."""
        ranks = status.ranks if status is not None else []
        ended = frozenset(rank.rank for rank in ranks if rank.state == "Exited")
        everything = bool(ranks) and len(ended) == len(ranks)
        return ended | self._tracker.followed(_generation(status)).keys() if everything else ended

    def _with_stack(self, rank: RankSignals) -> RankSignals:
        stack, samples = self._stacks.of(rank.rank), self._samples.of(rank.rank)
        return msgspec.structs.replace(rank, stack=stack, samples=samples) if stack or samples else rank

    def summary(self, status: LaunchStatus | None) -> Summary:
        """Return the content of the next report."""
        generation = _generation(status)
        signals = self._tracker.signals(generation, self._asked(generation), self._ended(status))
        return Summary(
            pod_uid=self._settings.pod_uid,
            sequence=self._sequence + 1,
            unix_ns=time.time_ns(),
            generation=generation,
            launch=self._ends.add(status),
            ended=self._ends.before(status),
            ranks=[self._with_stack(rank) for rank in signals],
            throttle=self._tracker.throttle(),
            network=self._tracker.network(),
            output=self._uncaught.marked(generation, self._output.reports(generation)),
            checkpoints=self._store.held() if self._store is not None else [],
            loaded=self._loaded(generation),
            check=self._checks.of(status),
            smoke=self._smoke.of(time.monotonic()),
            probe=self._probing.report(time.monotonic()),
            copies=self._copying.report if self._copying is not None else None,
            directory=self._directory,
            groups=self._groups,
            imported=self._imports.asked(self._plan, self._settings.pod_uid, status),
            anomalies=self._anomalies(status, generation, time.monotonic()),
            results=self._tracker.results(generation),
        )

    def _held(self) -> list[Held]:
        """Return the checkpoints in the pod's memory, of its own ranks and of other pods'."""
        own = self._store.held() if self._store is not None else []
        return own if self._copying is None else [*own, *self._copying.report.held]

    def _loaded(self, generation: int) -> list[Loaded]:
        """Return from what the generation's ranks have begun."""
        found = self._store.loaded(generation) if self._store is not None else []
        return found if self._copying is None else [self._copying.origin(each, generation) for each in found]


def _generation(status: LaunchStatus | None) -> int:
    return status.generation if status is not None else 0


def live() -> int:
    """Read the settings and run the agent. Return the exit code: 78 for settings that cannot be used."""
    settings = begin("falcon-agent", load_settings)
    if settings is None:
        return EXIT_CONFIG
    asyncio.run(Agent(settings).run())
    return 0
