"""falcon-launch as the agent sees it: real processes under a plan that the test writes in the agent's place."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from falcon_agent.launch.run_dir import TAIL_BYTES
from falcon_core.wire.launcher.launch import LaunchCounters, LaunchPlan, render_plan
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import SHIM


def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_waits_for_a_plan_runs_reports_and_finishes(start: Start) -> None:
    launcher = start("sh", "-c", 'echo "rank $RANK of $WORLD_SIZE in $FALCON_GENERATION"')
    assert launcher.wait(state="Idle").generation == 0
    launcher.run(procs=2)
    ended = launcher.wait(state="Exited")
    assert [(rank.rank, rank.exit_code, rank.signal) for rank in ended.ranks] == [(0, 0, None), (1, 0, None)]
    assert ended.untracked is None
    launcher.plan(LaunchPlan(generation=1, phase="Finish", exit_code=7))
    out, _ = launcher.process.communicate(timeout=60)
    assert launcher.process.returncode == 7
    assert sorted(out.decode().splitlines()) == ["rank 0 of 2 in 1", "rank 1 of 2 in 1"]


def test_a_killed_rank_is_reported_and_the_next_generation_starts_when_the_old_one_is_dead(start: Start) -> None:
    # A grandchild in a session of its own must not survive its generation.
    launcher = start("sh", "-c", "setsid sleep 1000 & trap '' TERM; while :; do sleep 1; done")
    launcher.run(procs=2)
    first = launcher.wait(state="Running")
    os.kill(first.ranks[1].pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while launcher.wait(generation=1).ranks[1].signal != signal.SIGKILL:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(state="Stopped", dead_below=2)
    children = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text().split()
    assert children == [], "every process of the old generation is dead"
    launcher.plan(LaunchPlan(generation=1, phase="Run", world_size=1, nnodes=1, procs=1, master_port=29511))
    time.sleep(0.2)
    assert launcher.wait(generation=2).state == "Stopped", "a lower generation is ignored"
    launcher.run(generation=2)
    launcher.wait(state="Running", generation=2)


def test_output_passes_unbroken_and_its_end_is_kept(start: Start) -> None:
    megabytes = 100
    launcher = start("sh", "-c", f"yes falcon | head -c {megabytes}000000; exec sleep 0.2")
    launcher.run()
    assert launcher.process.stdout is not None
    digest, count = hashlib.sha256(), 0
    while count < megabytes * 1_000_000:
        chunk = launcher.process.stdout.read1(1 << 20)
        digest.update(chunk)
        count += len(chunk)
    expected = (b"falcon\n" * (megabytes * 1_000_000 // 7 + 1))[: megabytes * 1_000_000]
    assert digest.hexdigest() == hashlib.sha256(expected).hexdigest()
    launcher.wait(state="Exited")
    assert launcher.tail(0) == expected[-TAIL_BYTES:]


def test_counters_are_read_each_second(start: Start) -> None:
    launcher = start("sh", "-c", "while :; do :; done")
    launcher.run()
    launcher.wait(state="Running")
    path = launcher.run_dir / "launch" / "counters.json"

    def cpu_ns() -> int:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if path.exists() and (ranks := msgspec.json.decode(path.read_bytes(), type=LaunchCounters).ranks):
                return ranks[0].cpu_ns or 0
            time.sleep(0.05)
        raise AssertionError("no counters of the rank")

    first = cpu_ns()
    deadline = time.monotonic() + 10
    while cpu_ns() <= first:
        assert time.monotonic() < deadline, "the counters stand still"
        time.sleep(0.05)


def test_sigterm_is_forwarded_and_ends_the_pod(start: Start) -> None:
    launcher = start("sh", "-c", "trap 'echo ended; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    launcher.run()
    assert launcher.process.stdout is not None
    assert launcher.process.stdout.readline() == b"ready\n"
    launcher.process.terminate()
    out, _ = launcher.process.communicate(timeout=60)
    assert b"ended" in out
    assert launcher.process.returncode == 3, "its own"


def test_a_static_program_runs_untracked_and_a_missing_one_is_named(start: Start) -> None:
    static = start(str(SHIM / "falcon-launch"), "--version")
    static.run()
    assert static.wait(state="Exited").untracked == "static"
    missing = start("no-such-program")
    missing.run()
    error = missing.wait(state="Exited").error
    assert error is not None
    assert "no-such-program" in error


def test_a_rank_runs_without_the_shim_where_tracking_is_switched_off(start: Start) -> None:
    program = "import os; raise SystemExit('libfalcon_shim' in os.environ.get('LD_PRELOAD', ''))"
    launcher = start(sys.executable, "-c", program, options=("--shim", "off"))
    launcher.run()
    ended = launcher.wait(state="Exited")
    assert (ended.untracked, ended.ranks[0].exit_code) == ("tracking is switched off", 0)


def test_a_run_directory_that_cannot_be_written_is_named() -> None:
    done = subprocess.run(
        [str(SHIM / "falcon-launch"), "run", "--run-dir", "/proc/nowhere", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    assert done.returncode == 78
    assert "/proc/nowhere" in done.stderr


def test_the_last_words_are_in_the_file_when_the_end_is_told(start: Start) -> None:
    launcher = start("sh", "-c", "seq 5000 >&2; echo last words >&2; exit 3")
    launcher.run()
    ended = launcher.wait(state="Exited")
    assert ended.ranks[0].exit_code == 3
    assert launcher.tail(0).endswith(b"5000\nlast words\n")


def test_lines_of_several_ranks_are_not_cut_into_each_other(start: Start) -> None:
    program = (
        "import sys\nfor _ in range(3000):\n    for c in 'ab', 'cd', 'e\\n': sys.stdout.write(c); sys.stdout.flush()"
    )
    launcher = start(sys.executable, "-c", program)
    launcher.run(procs=3)
    launcher.wait(state="Exited", timeout_seconds=120)
    out, _ = launcher.finish()
    assert out == "abcde\n" * 9000


def test_a_rank_starts_with_signals_preloads_and_scripts_as_without_us(start: Start, tmp_path: Path) -> None:
    signals = 'grep -E "^Sig(Ign|Blk)" /proc/self/status'  # of grep: a shell blocks signals while it forks
    script = tmp_path / "script"
    script.write_text(f'echo "preload $LD_PRELOAD"; {signals}')
    script.chmod(0o755)  # no #!: a shell runs it, as execvp does
    launcher = start(str(script), environment={"LD_PRELOAD": "libm.so.6"})
    launcher.run()
    launcher.wait(state="Exited")
    out, _ = launcher.finish()
    without_us = subprocess.run(["sh", "-c", signals], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == [f"preload libm.so.6:{SHIM}/libfalcon_shim.so", *without_us.splitlines()]


def test_a_library_of_the_users_own_is_loaded_beside_the_shim(start: Start) -> None:
    """Allocators and profilers come this way; the shim is the last of them."""
    found = "libanl.so.1"  # glibc's own, which nothing loads by itself
    program = "print(*sorted({line.split('/')[-1].strip() for line in open('/proc/self/maps') if '.so' in line}))"
    launcher = start(sys.executable, "-c", program, environment={"LD_PRELOAD": found})
    launcher.run()
    launcher.wait(state="Exited")
    out, _ = launcher.finish()
    assert {found, "libfalcon_shim.so"} <= set(out.split())
    without = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert not {found, "libfalcon_shim.so"} & set(without.split()), "else it shows nothing"


def test_orphans_are_reaped(start: Start) -> None:
    launcher = start("sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.1 &) ; done; exec sleep 1000")
    launcher.run()
    rank = launcher.wait(state="Running").ranks[0]
    children = Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children")
    deadline = time.monotonic() + 10
    while children.read_text().split() != [str(rank.pid)]:
        assert time.monotonic() < deadline, f"children of the launcher: {children.read_text()}, the rank is {rank.pid}"
        time.sleep(0.05)


def test_a_plan_that_cannot_be_carried_out_is_named_and_the_next_one_heals_it(start: Start) -> None:
    launcher = start("true")
    (launcher.run_dir / "agent" / "plan").write_text("version=1\ngeneration=1\nphase=Run\nworld_size=none\n")
    launcher.wait(error="agent/plan: world_size is 'none', want a number from 1 to 2147483647")
    launcher.run()
    assert launcher.wait(state="Exited").error is None


def test_a_new_generation_begins_without_the_rings_of_the_old_one(start: Start) -> None:
    launcher = start("sleep", "1000")
    launcher.run()
    launcher.wait(state="Running")
    old = launcher.run_dir / "launch" / "rings" / "g1-r0-1.ring"
    old.touch()
    launcher.run(generation=2)
    launcher.wait(state="Running", generation=2, dead_below=2)
    assert not old.exists()


def test_install_copies_both_files_with_their_modes(tmp_path: Path) -> None:
    target = tmp_path / "bin"
    subprocess.run([str(SHIM / "falcon-launch"), "install", str(target)], check=True, timeout=20)
    modes = {path.name: path.stat().st_mode & 0o777 for path in target.iterdir()}
    assert modes == {"falcon-launch": 0o755, "libfalcon_shim.so": 0o644}
    assert (target / "libfalcon_shim.so").read_bytes() == (SHIM / "libfalcon_shim.so").read_bytes()


def test_the_agent_can_read_everything_under_any_umask(start: Start) -> None:
    before = os.umask(0o077)
    try:
        launcher = start("sh", "-c", "echo hello; sleep 1000")
    finally:
        os.umask(before)
    launcher.run()
    launcher.wait(state="Running")
    launch = launcher.run_dir / "launch"
    _until((launch / "output.0").exists, "the rank's output")
    _until(lambda: any(launch.glob("printed.*")), "the announcement")
    _until((launch / "counters.json").exists, "counters")
    unreadable = [path for path in (launch, *launch.rglob("*")) if not path.stat().st_mode & 0o004]
    assert unreadable == []
    assert all(path.stat().st_mode & 0o001 for path in (launch, launch / "rings"))


READS = "import sys; print(f'read {sys.stdin.readline().strip()}.', flush=True)"


def _in_a_terminal(run_dir: Path, procs: int) -> str:
    """Run ranks that read their input in a terminal, into which ``hello`` is typed. Return what is shown there."""
    (run_dir / "agent").mkdir(parents=True)
    (run_dir / "agent" / "alive").touch()
    plan = LaunchPlan(generation=1, phase="Run", world_size=procs, nnodes=1, procs=procs, master_port=29511)
    (run_dir / "agent" / "plan").write_text(render_plan(plan))
    command = [str(SHIM / "falcon-launch"), "run", "--run-dir", str(run_dir), "--", sys.executable, "-c", READS]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    os.write(terminal, b"hello\n")
    shown = b""
    deadline = time.monotonic() + 20
    try:
        while len(re.findall(rb"read .*\.", shown)) < procs and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown.decode()


def test_a_rank_that_reads_from_a_terminal_is_not_stopped(tmp_path: Path) -> None:
    assert "read hello." in _in_a_terminal(tmp_path / "one", 1)
    assert _in_a_terminal(tmp_path / "two", 2).count("read .") == 2, "the end of input"


def test_who_handles_the_signal_is_not_cut_off_at_a_restart(start: Start, tmp_path: Path) -> None:
    """A checkpoint that is being uploaded takes longer than the second that everybody gets."""
    upload = (
        f"trap 'sleep 3; touch {tmp_path}/uploaded; exit 0' TERM; touch {tmp_path}/set; while :; do sleep 0.05; done"
    )
    launcher = start("sh", "-c", upload)
    launcher.run()
    launcher.wait(state="Running")
    _until((tmp_path / "set").exists, "the trap")
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(state="Stopped", dead_below=2)
    assert (tmp_path / "uploaded").exists()


def test_the_grace_of_a_restart_has_an_end(start: Start, tmp_path: Path) -> None:
    never = f"trap 'echo again' TERM; touch {tmp_path}/set; while :; do sleep 0.05; done"
    launcher = start("sh", "-c", never, options=("--restart-grace-seconds", "2"))
    launcher.run()
    launcher.wait(state="Running")
    _until((tmp_path / "set").exists, "the trap")
    begun = time.monotonic()
    launcher.plan(LaunchPlan(generation=2, phase="Stop"))
    launcher.wait(state="Stopped", dead_below=2)
    assert time.monotonic() - begun > 1.9
