"""Start the agent from the command line: ``falcon-agent``, or ``python -m falcon_agent``.

Only the sidecar and the node's daemon need the extra ``agent``: the commands that inspect, record and replay rings work
wherever the distribution is installed. Exit codes: 0, 1 where a command could not do its work, 2 for a wrong command
line, 78 for settings that cannot be used or a package that is missing.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from falcon_core.command_line import missing_package, parser

PROGRAM = "falcon-agent"
EXIT_CONFIG = 78  # sysexits.h EX_CONFIG
DESCRIPTION = """\
Falcon's agent. Without a command it runs as the sidecar of a job's pod (needs falcon-training[agent] and the
environment that the operator sets). The commands below work anywhere.
"""


def _run(module: str) -> int:
    """Run a service: ``module`` has the function ``live``, which returns the exit code."""
    try:
        service = importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(missing_package(PROGRAM, "agent", error), file=sys.stderr)
        return EXIT_CONFIG
    return int(service.live())


def _burn_in(seconds: float, output: Path, folder: Path) -> int:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the test makes its own threads; read once, when numpy is loaded
    from falcon_agent.cli.burn_in import burn_in
    from falcon_agent.telemetry.cpu import usable_cpus
    from falcon_core.wire.measurement.burn_in import encode_report

    result = burn_in(seconds, folder, usable_cpus())
    line = encode_report(result)
    print(line.decode(), flush=True)
    if output.parent.exists():
        output.write_bytes(line)
    return 1 if result.disk_error else 0


def _inspect(path: Path) -> int:
    from falcon_agent.rings.ring_reader import RingReader
    from falcon_core.signals.rank.chain import RankChain
    from falcon_core.wire.reporting.messages import Detection
    from falcon_core.wire.ring import RingFormatError

    try:
        reader = RingReader(path)
    except (OSError, RingFormatError) as error:
        return _failed(f"inspect {path}", error)
    chain = RankChain(Detection())
    batch = reader.read(0.0)
    # The chain judges the calls as the sidecar does, so people see what the operator would be sent.
    chain.feed(batch.records, lost=batch.lost > 0)
    contents = {
        "header": msgspec.to_builtins(reader.header),
        "records": len(batch.records),
        "lost": batch.lost,
        "signals": msgspec.to_builtins(chain.signals(reader.header.rank, 0)),
    }
    print(msgspec.json.format(msgspec.json.encode(contents), indent=2).decode())
    return 0


def _record(source: Path, folder: Path, seconds: float | None) -> int:
    from falcon_agent.rings.recorder import record

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        recordings = record(
            source, folder, lambda: not ended.is_set() and (deadline is None or time.monotonic() < deadline)
        )
    except OSError as error:
        return _failed(f"record {source}", error)
    for name, recording in recordings.items():
        print(f"{folder / name}: {recording.records} records, {recording.lost_records} lost")
    return 0 if recordings else 1


def _replay(paths: list[Path], plot: Path | None) -> int:
    from falcon_agent.cli.replay import describe, replay, ring_files
    from falcon_core.wire.ring import RingFormatError

    # Ask before the replay, which may take minutes.
    if plot is not None and importlib.util.find_spec("matplotlib") is None:
        error = ModuleNotFoundError(name="matplotlib")
        print(missing_package(f"{PROGRAM} replay --plot", "plot", error), file=sys.stderr)
        return EXIT_CONFIG
    try:
        replayed = replay(ring_files(paths))
    except (OSError, RingFormatError) as error:
        return _failed("replay", error)
    print(describe(replayed))
    if plot is not None:
        from falcon_agent.cli.replay_plot import draw

        try:
            draw(replayed, plot)
        except (OSError, ValueError) as error:  # no such folder; a suffix that stands for no format
            return _failed(f"replay --plot {plot}", error)
    return 0


def _failed(command: str, error: Exception) -> int:
    print(f"{PROGRAM} {command}: {error}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    made = parser(PROGRAM, DESCRIPTION)
    commands = made.add_subparsers(dest="command", title="commands", metavar="COMMAND")
    commands.add_parser("run", help="run the sidecar (the default)")
    commands.add_parser("node", help="run the node's daemon, which the chart's nodeAgent deploys")
    test = commands.add_parser("burn-in", help="test this machine; prints one line of JSON")
    test.add_argument("--seconds", type=float, default=5.0, help="how long it computes (default: %(default)s)")
    test.add_argument(
        "--output", type=Path, default=Path("/dev/termination-log"), help="a file for the line (default: %(default)s)"
    )
    test.add_argument(
        "--folder", type=Path, default=Path("/tmp"), help="where the disk is tested (default: %(default)s)"
    )
    look = commands.add_parser("inspect", help="print what a ring file holds")
    look.add_argument("ring", type=Path)
    keep = commands.add_parser("record", help="keep the calls that go through a ring, or all rings of a run directory")
    keep.add_argument("source", type=Path, help="a ring file or a run directory")
    keep.add_argument("folder", type=Path, help="where the copies go")
    keep.add_argument("--seconds", type=float, help="how long (default: until interrupted)")
    again = commands.add_parser("replay", help="judge recorded rings as the agent and the operator would have")
    again.add_argument("rings", type=Path, nargs="+", help="a file for each rank, or a folder that holds them")
    again.add_argument("--plot", type=Path, help="draw a picture, .png or .svg (needs falcon-training[plot])")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    options = _parser().parse_args(arguments)
    match options.command:
        case "node":
            return _run("falcon_agent.node.daemon")
        case "burn-in":
            return _burn_in(options.seconds, options.output, options.folder)
        case "inspect":
            return _inspect(options.ring)
        case "record":
            return _record(options.source, options.folder, options.seconds)
        case "replay":
            return _replay(options.rings, options.plot)
    return _run("falcon_agent.agent")


if __name__ == "__main__":
    sys.exit(main())
