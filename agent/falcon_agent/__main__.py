"""``falcon_agent``: run the sidecar, test a node (burn-in), look into a ring (inspect), keep it (record), replay it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import msgspec
import structlog

from falcon_agent.settings import EXIT_CONFIG, SettingsError, load_settings


def _configure_logs(level: str) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )


def _run() -> int:
    from falcon_agent.agent import Agent

    try:
        settings = load_settings()
    except SettingsError as error:
        print(f"falcon-agent: {error}", file=sys.stderr)
        return EXIT_CONFIG
    _configure_logs(settings.log_level)
    asyncio.run(Agent(settings).run())
    return 0


def _burn_in(seconds: float, output: Path, folder: Path) -> int:
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the test makes its own threads; read once, when numpy is loaded
    from falcon_agent.burn_in import burn_in
    from falcon_agent.telemetry.cpu import usable_cpus
    from falcon_core.wire.burn_in import encode_report

    result = burn_in(seconds, folder, usable_cpus())
    line = encode_report(result)
    print(line.decode(), flush=True)
    if output.parent.exists():
        output.write_bytes(line)
    return 1 if result.disk_error else 0


def _inspect(path: Path) -> int:
    from falcon_agent.ring_reader import RingReader
    from falcon_core.signals.rank import RankChain
    from falcon_core.wire.messages import Detection
    from falcon_core.wire.ring import RingFormatError

    try:
        reader = RingReader(path)
    except (OSError, RingFormatError) as error:
        print(f"falcon-agent inspect {path}: {error}", file=sys.stderr)
        return 1
    chain = RankChain(Detection())
    batch = reader.read(0.0)
    chain.feed(batch.records, lost=batch.lost > 0)
    told = {
        "header": msgspec.to_builtins(reader.header),
        "records": len(batch.records),
        "lost": batch.lost,
        "signals": msgspec.to_builtins(chain.signals(reader.header.rank, 0)),
    }
    print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
    return 0


def _record(source: Path, folder: Path, seconds: float | None) -> int:
    from falcon_agent.recorder import record

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        recordings = record(
            source, folder, lambda: not ended.is_set() and (deadline is None or time.monotonic() < deadline)
        )
    except OSError as error:
        print(f"falcon-agent record {source}: {error}", file=sys.stderr)
        return 1
    for name, one in recordings.items():
        print(f"{folder / name}: {one.records} records, {one.lost_records} lost")
    return 0 if recordings else 1


def _replay(paths: list[Path], plot: Path | None) -> int:
    from falcon_agent.replay import describe, replay
    from falcon_core.wire.ring import RingFormatError

    try:
        told = replay(paths)
    except (OSError, RingFormatError) as error:
        print(f"falcon-agent replay: {error}", file=sys.stderr)
        return 1
    print(describe(told))
    if plot is not None:
        try:
            from falcon_agent.replay_plot import draw
        except ModuleNotFoundError as error:
            print(f"falcon-agent replay --plot: {error}: pip install 'falcon-training[plot]'", file=sys.stderr)
            return 1
        try:
            draw(told, plot)
        except (OSError, ValueError) as error:  # no such folder; a suffix that stands for no format
            print(f"falcon-agent replay --plot {plot}: {error}", file=sys.stderr)
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="falcon_agent", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run", help="the sidecar (default)")
    test = commands.add_parser("burn-in", help="test this machine; one JSON line")
    test.add_argument("--seconds", type=float, default=5.0)
    test.add_argument("--output", type=Path, default=Path("/dev/termination-log"), help="written, too, if it can be")
    test.add_argument("--folder", type=Path, default=Path("/tmp"), help="where the disk is tested")
    look = commands.add_parser("inspect", help="what a ring file says")
    look.add_argument("ring", type=Path)
    keep = commands.add_parser("record", help="keep what runs through a ring, or all rings of a run directory")
    keep.add_argument("source", type=Path, help="a ring file or a run directory")
    keep.add_argument("folder", type=Path, help="where the copies go")
    keep.add_argument("--seconds", type=float, help="default: until interrupted")
    again = commands.add_parser("replay", help="run captured rings through the whole chain")
    again.add_argument("rings", type=Path, nargs="+", help="one file a rank")
    again.add_argument("--plot", type=Path, help="draw a picture (needs matplotlib)")
    options = parser.parse_args()
    match options.command:
        case "burn-in":
            return _burn_in(options.seconds, options.output, options.folder)
        case "inspect":
            return _inspect(options.ring)
        case "record":
            return _record(options.source, options.folder, options.seconds)
        case "replay":
            return _replay(options.rings, options.plot)
    return _run()


if __name__ == "__main__":
    sys.exit(main())
