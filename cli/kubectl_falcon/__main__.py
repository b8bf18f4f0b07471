"""Parse the plugin's command line: ``kubectl falcon``, that is ``kubectl-falcon``, or ``python -m kubectl_falcon``.

Exit codes: 0; 1 where a command could not do its work; 2 for a wrong command line; of ``check``: 3 where something is
slow, or with ``--metrics`` where a verdict stands.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from falcon_core.command_line import missing_package, parser
from falcon_core.text import clean
from kubectl_falcon import bundle, checks, objects, suspension
from kubectl_falcon.explain import explain
from kubectl_falcon.kubectl import JOBS, RUNS, Kubectl, Scope, find_job
from kubectl_falcon.series import models as learned
from kubectl_falcon.series import page as series_page
from kubectl_falcon.series import request
from kubectl_falcon.timeline import Sample, Timeline, timeline
from kubectl_falcon.timeline_text import picture
from kubectl_falcon.top import row, table
from kubectl_falcon.trouble import TroubleError
from kubectl_falcon.words import duration

PROGRAM = "kubectl-falcon"
DESCRIPTION = """\
Read, check and suspend Falcon's TrainingJobs. Installed on PATH, kubectl runs it as `kubectl falcon`.
"""
EXIT_TROUBLE = 1
EXIT_USAGE = 2
EXIT_SLOW = 3
CHECK_SECONDS = 180.0
WATCH_SECONDS = 5.0
MOST_SAMPLES = 10_000  # of a watch: beyond them, the oldest are dropped
_CLEAR = "\033[H\033[2J"
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of an object; never a flag of kubectl


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


# -- commands ----------------------------------------------------------------------------------------------------------


def _explain(kubectl: Kubectl, options: argparse.Namespace) -> int:
    job, run, events, remarks = _look(kubectl, options.job)
    print(explain(job, run, events, now=time.time(), width=_width(), remarks=remarks))
    return 0


def _look(kubectl: Kubectl, name: str) -> tuple[objects.Job, objects.Run | None, tuple[objects.Event, ...], list[str]]:
    """Read a job with its run and Events; what cannot be read is named. Raises TroubleError without the job itself."""
    job = objects.job_of(find_job(kubectl, name))
    inside = kubectl.within(job.namespace)
    found = bundle.Gathered()
    run = found.attempt("the TrainingRun", lambda: objects.run_of(inside.get(RUNS, name)))
    listed = found.attempt("Events", lambda: inside.list_all("events", *bundle.events_of_job(name)))
    return job, run, objects.events_of(listed or {}), found.missing


def _timeline(kubectl: Kubectl, options: argparse.Namespace) -> int:
    # Ask first: with --watch the picture is drawn only at the end, perhaps after hours.
    if options.png is not None and (refused := _unwritable(options.png, "timeline")):
        print(refused, file=sys.stderr)
        return EXIT_TROUBLE
    samples: list[Sample] = []
    story: Timeline | None = None

    def look() -> str:
        nonlocal story
        story = _story(kubectl, options, samples)
        return picture(story, _width())

    if options.watch:
        _repeat(look)
    else:
        print(look())
    if options.png is not None and story is not None:
        from kubectl_falcon.timeline_plot import draw

        draw(story, options.png)
    return 0


def _story(kubectl: Kubectl, options: argparse.Namespace, samples: list[Sample]) -> Timeline:
    job, run, events, missing = _look(kubectl, options.job)
    for line in missing:
        print(f"{PROGRAM}: not shown: {line}", file=sys.stderr)
    now = time.time()
    if options.watch and job.current_us and job.state in ("Running", "Degraded"):
        samples.append(Sample(now, job.current_us))
        del samples[:-MOST_SAMPLES]
    return timeline(job, run, events, now=now, last_seconds=options.last, samples=samples)


def _unwritable(path: Path, command: str) -> str | None:
    """Say what would keep a picture from being written; asked before anything is read."""
    if path.suffix != ".png":
        return f"--png {path}: the name must end in .png"
    if not path.parent.is_dir():
        return f"--png {path}: the folder {path.parent} does not exist; create it, or choose another"
    if importlib.util.find_spec("matplotlib") is None:
        error = ModuleNotFoundError(name="matplotlib")
        return missing_package(f"{PROGRAM} {command} --png", "plot", error)
    return None


def _top(kubectl: Kubectl, options: argparse.Namespace) -> int:
    scope: Scope = "All" if options.all_namespaces else "Namespace"
    # Output into a file or a pipe is not cut.
    width = _width() if sys.stdout.isatty() else None

    def look() -> str:
        jobs = [objects.job_of(each) for each in objects.items_of(kubectl.list_all(JOBS, scope=scope))]
        if not jobs:
            return "no TrainingJobs" + ("" if options.all_namespaces else f" in namespace {kubectl.namespace()}")
        found = bundle.Gathered()
        # A user may be allowed to read jobs but not runs; then some columns stay empty.
        runs = found.attempt("the TrainingRuns", lambda: objects.items_of(kubectl.list_all(RUNS, scope=scope))) or []
        by_name = {(each["metadata"]["namespace"], each["metadata"]["name"]): objects.run_of(each) for each in runs}
        now = time.time()
        rows = [row(job, by_name.get((job.namespace, job.name)), now) for job in jobs]
        return "\n".join([table(rows, namespaces=options.all_namespaces, width=width), *found.missing])

    if options.watch:
        _repeat(look)
    else:
        print(look())
    return 0


def _export(kubectl: Kubectl, options: argparse.Namespace) -> int:
    path = options.output
    if path.exists():
        print(f"{PROGRAM}: {path} exists already: choose another name with -o", file=sys.stderr)
        return EXIT_TROUBLE
    found = bundle.gather(kubectl, options.job, options.falcon_namespace)
    bundle.write(bundle.files(found, options.job), path, options.job, time.time())
    for line in found.missing:
        print(f"{PROGRAM}: not included: {line}", file=sys.stderr)
    print(f"{path}: read it before you publish it; README.txt in it says what was taken out")
    return 0


def _check(kubectl: Kubectl, options: argparse.Namespace) -> int:
    if options.metrics:
        return _check_metrics(kubectl, options)
    if options.png is not None or options.since is not None:
        print(f"{PROGRAM}: --since and --png are about series: write --metrics as well", file=sys.stderr)
        return EXIT_USAGE
    found = checks.check(kubectl, options.job, options.wait)
    for line in found.lines:
        print(textwrap.fill(clean(line), _width(), subsequent_indent="    ", break_on_hyphens=False))
    return 0 if found.good else EXIT_SLOW


def _check_metrics(kubectl: Kubectl, options: argparse.Namespace) -> int:
    if options.png is not None and (refused := _unwritable(options.png, "check --metrics")):
        print(refused, file=sys.stderr)
        return EXIT_TROUBLE
    job, found = request.ask(kubectl, options.job, options.since or request.MOST_SECONDS, options.wait)
    # Output into a file or a pipe has no colour, and its table is not cut.
    shown = sys.stdout.isatty()
    colour = shown and not os.environ.get("NO_COLOR")
    print(series_page.page(job, found, _width(), colour=colour, cut=shown))
    if options.png is not None:
        from kubectl_falcon.series.picture import draw

        draw(job, found, options.png)
    return EXIT_SLOW if any(row.verdict for row in found.rows) else 0


def _anomalies(kubectl: Kubectl, options: argparse.Namespace) -> int:
    width = _width() if sys.stdout.isatty() else None
    print(learned.models(kubectl, options.falcon_namespace, options.job, width))
    return 0


def _suspend(kubectl: Kubectl, options: argparse.Namespace) -> int:
    text, as_wished = suspension.set_suspended(kubectl, options.job, options.command == "suspend")
    print(textwrap.fill(text, _width(), break_on_hyphens=False))
    return 0 if as_wished else EXIT_TROUBLE


def _repeat(look: Callable[[], str]) -> None:
    """Print what ``look`` returns until interrupted; on a terminal, each time in the same place."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        while True:
            text = look()
            print(f"{_CLEAR}{text}" if sys.stdout.isatty() else text, flush=True)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return


# -- the command line --------------------------------------------------------------------------------------------------


def _job_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{clean(text)!r} is no name of an object")
    return text


def _duration(text: str) -> float:
    try:
        return duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _add_falcon_namespace(to: argparse.ArgumentParser) -> None:
    text = "of the operator (default: %(default)s)"
    to.add_argument("--falcon-namespace", type=_job_name, default="falcon-system", help=text)


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-n", "--namespace", type=_job_name, help="default: that of the context")
    for flag, what in (
        ("--context", "the kubeconfig's context"),
        ("--kubeconfig", "the file"),
        ("--as", "act as user"),
    ):
        shared.add_argument(flag, dest=flag.removeprefix("--") + "_", metavar="VALUE", help=f"{what}, as for kubectl")
    made = parser(PROGRAM, DESCRIPTION)
    commands = made.add_subparsers(dest="command", title="commands", metavar="COMMAND", required=True)

    def command(name: str, run: Callable[[Kubectl, argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[shared], help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.set_defaults(run=run)
        return added

    def job_command(name: str, run: Callable[[Kubectl, argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        added = command(name, run, text)
        added.add_argument("job", type=_job_name, help="name of the TrainingJob")
        return added

    job_command("explain", _explain, "what is wrong with a job, why, what was done, and what is next: one page")
    story = job_command("timeline", _timeline, "a job's iteration times, incidents and actions, as a picture")
    story.add_argument("--last", type=_duration, metavar="TIME", help="only the newest part, such as 30m or 2h")
    story.add_argument("--png", type=Path, metavar="FILE", help="draw it there as well (needs falcon-training[plot])")
    story.add_argument("-w", "--watch", action="store_true", help="sample the iteration time until interrupted")
    every = command("top", _top, "all jobs, those that have lost most time first")
    every.add_argument("-A", "--all-namespaces", action="store_true", help="of all namespaces")
    every.add_argument("-w", "--watch", action="store_true", help="refresh until interrupted")
    report = job_command("export", _export, "all that a bug report needs, without secrets, as one archive")
    report.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="such as bundle.tar.gz")
    _add_falcon_namespace(report)
    now = job_command("check", _check, "measure a job's machines and links now, while all ranks pause for a second")
    now.add_argument(
        "--wait",
        type=_duration,
        default=CHECK_SECONDS,
        metavar="TIME",
        help="for the result, such as 10m (default: 3m)",
    )
    now.add_argument(
        "--metrics",
        action="store_true",
        help="show instead which ranks' series differ from their peers'; no rank pauses",
    )
    now.add_argument(
        "--since",
        type=_duration,
        metavar="TIME",
        help="with --metrics: how far back, such as 30m (at most, default: 2h)",
    )
    now.add_argument(
        "--png",
        type=Path,
        metavar="FILE",
        help="with --metrics: draw the heat maps there as well (needs falcon-training[plot])",
    )
    odd = command("anomalies", _anomalies, "what the anomaly service has learned, by kind of job")
    odd.add_argument("job", type=_job_name, nargs="?", help="name of a TrainingJob: show the limits of its kind")
    odd.add_argument("--models", action="store_true", required=True, help="show versions and limits")
    _add_falcon_namespace(odd)
    job_command("suspend", _suspend, "end a job's ranks and delete its pods; the job stays (spec.suspend)")
    job_command("resume", _suspend, "start a suspended job again, in new pods")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Return the exit code."""
    options = _parser().parse_args(arguments)
    given = {"--context": options.context_, "--kubeconfig": options.kubeconfig_, "--as": options.as_}
    flags = [f"{flag}={value}" for flag, value in given.items() if value]
    try:
        return int(options.run(Kubectl(flags, options.namespace or ""), options))
    except TroubleError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    except BrokenPipeError:  # `kubectl falcon explain … | head`
        sys.stderr.close()
    except OSError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    return EXIT_TROUBLE


if __name__ == "__main__":
    sys.exit(main())
