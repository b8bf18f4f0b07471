"""Run the node's daemon: wait for the kernel's log, read links and GPUs in between, and keep the conditions."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import structlog

from falcon_agent.node import kmsg, nvml
from falcon_agent.node.api import NodeApi
from falcon_agent.node.conditions import Keeper
from falcon_agent.node.cpu_contention import Busy
from falcon_agent.node.cpu_usage import Accounts
from falcon_agent.node.gpus import Gpus
from falcon_agent.node.links import Links, read_ports
from falcon_agent.node.pod_names import pod_name
from falcon_agent.node.problems import Problems, of_line
from falcon_agent.service import begin
from falcon_agent.settings import EXIT_CONFIG, NodeSettings, load_node_settings
from falcon_core.errors.judge import platform_judge

LOOP_SECONDS = 5.0  # without a line of the kernel's
BATCH_SECONDS = 0.5  # lines come in bursts
LINK_SECONDS = 15.0
GPU_SECONDS = 30.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = structlog.get_logger()


def live() -> int:
    """Run until SIGTERM. Return the exit code: 78 for settings that cannot be used, 1 without the kernel's log."""
    settings = begin("falcon-agent node", load_node_settings)
    if settings is None:
        return EXIT_CONFIG
    # The loop waits in the kernel's log: only an exception ends that at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        log = kmsg.Log()
    except OSError as error:
        print(f"falcon-agent node: {error}: the container needs the device and CAP_SYSLOG", file=sys.stderr)
        return 1
    daemon = Daemon(settings, log)
    _log.info("node agent started", node=settings.node)
    while True:
        daemon.step()


class Daemon:
    """The daemon of one node."""

    def __init__(self, settings: NodeSettings, log: kmsg.Log) -> None:
        judge = platform_judge(settings.errors)
        self._log = log
        self._judge = judge
        self._problems = Problems(judge, BOOT_ID.read_text().strip())
        self._accounts = Accounts(settings.sysfs / "fs/cgroup", settings.pod_uid)
        self._busy = Busy(lambda uid: pod_name(settings.pod_logs, uid)) if settings.pod_uid else None
        self._keeper = Keeper(NodeApi(settings.node, settings.account), self._problems, self._busy)
        self._sysfs = settings.sysfs
        self._links = Links()
        self._links_at = 0.0
        self._gpus = Gpus()
        self._gpu_reader = nvml.GpuReader(nvml.load(), GPU_SECONDS)
        self._gpu_reader.start()

    def step(self) -> None:
        """Wait for something to read, judge it, and write what has changed."""
        if self._log.wait(LOOP_SECONDS):
            # A fault writes several lines: read them together, and write the condition once.
            time.sleep(BATCH_SECONDS)
        self._read_log()
        now = time.time()
        self._read_links(now)
        for at, gpus in self._gpu_reader.readings():
            self._problems.see(self._gpus.feed(gpus, at))
        self._read_accounts(time.monotonic())
        self._keeper.keep(now)

    def _read_log(self) -> None:
        before = self._log.overwritten
        records = self._log.read()
        if self._log.overwritten > before:
            _log.warning("the kernel's log was overwritten before it could be read")
        seen = (of_line(record.text, kmsg.unix_seconds(record), self._judge, record.level) for record in records)
        self._problems.see(each for each in seen if each is not None)

    def _read_accounts(self, now: float) -> None:
        if self._busy is not None and (usage := self._accounts.read(now)) is not None:
            self._busy.feed(usage)

    def _read_links(self, now: float) -> None:
        if now - self._links_at < LINK_SECONDS:
            return
        self._links_at = now
        self._links.remember(self._problems.text_of("LinkDown"))
        self._problems.see(self._links.feed(read_ports(self._sysfs), now))
