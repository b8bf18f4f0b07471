"""The last words of programs: tracebacks as Python, PyTorch and torchrun write them, and what has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.last_words import MOST_CHARACTERS
from falcon_core.errors.table import Source, shipped
from falcon_core.model import Severity

OWN = """step 40 loss 2.31
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/job/train.py", line 80, in <module>
[rank1]:     main()
[rank1]:   File "/opt/job/train.py", line 71, in main
[rank1]:     loss = model(batch)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank1]:     return F.linear(input, self.weight, self.bias)
[rank1]: ValueError: expected sequence of length 64 at dim 1 (got 63)
"""
PEERS = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/job/train.py", line 75, in main
[rank0]:     dist.all_reduce(total)
[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.3]:27189
"""
JUDGE = shipped_judge()
TORCHRUN = """torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""


def test_the_programs_own_error_with_its_place() -> None:
    found = JUDGE.last_words(OWN)
    assert found.text == "ValueError: expected sequence of length 64 at dim 1 (got 63) (train.py:71 in main)"
    assert (found.error, found.consequence) == ("ValueError", False)


@pytest.mark.parametrize("output", [PEERS + OWN, OWN + PEERS, OWN + "Traceback (most recent call last):\n" + TORCHRUN])
def test_the_cause_before_its_consequences(output: str) -> None:
    assert JUDGE.last_words(output).error == "ValueError"


def test_a_peers_end_is_no_fault_of_ones_own() -> None:
    found = JUDGE.last_words(PEERS)
    assert found.consequence
    assert found.error == ""
    assert "Connection closed by peer" in found.text


@pytest.mark.parametrize(
    ("program", "error", "place"),
    [
        ("import no_such_module", "ModuleNotFoundError", "job.py:1 in <module>"),
        ("def f(:\n  pass", "SyntaxError", "job.py:1"),
        ("def load():\n  return open('/no/such/file')\nload()", "FileNotFoundError", "job.py:2 in load"),
        ("assert 1 > 2, 'loss is NaN'", "AssertionError", "job.py:1 in <module>"),
        ("import json\njson.loads('{')", "", "job.py:2 in <module>"),
    ],
)
def test_real_interpreters(tmp_path: Path, program: str, error: str, place: str) -> None:
    (tmp_path / "job.py").write_text(program)
    done = subprocess.run([sys.executable, tmp_path / "job.py"], capture_output=True, text=True)
    found = JUDGE.last_words(done.stderr)
    assert found.error == error
    assert found.text.endswith(f"({place})")
    assert JUDGE.words(found.text) == found, "the operator judges alike, by the text alone"


def test_a_script_that_is_not_there() -> None:
    done = subprocess.run([sys.executable, "/no/such/script.py"], capture_output=True, text=True)
    assert "No such file or directory" in JUDGE.last_words(done.stderr).text


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("", ""),
        ("\n \n", ""),
        ("epoch 1\nepoch 2\n", "epoch 2"),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error\nepoch\n", "what(): CUDA"),
        ("fatal: disk full\nUserWarning: error bars are deprecated\n", "fatal: disk full"),
        ("NCCL INFO error handler installed\ntrained\n", "trained"),
    ],
)
def test_without_a_traceback_the_last_line_that_sounds_bad(output: str, text: str) -> None:
    assert " ".join(JUDGE.last_words(output).text.split()).startswith(text)


def test_words_are_bounded_printable_and_hold_no_secret() -> None:
    output = "Traceback (most recent call last):\nValueError: \x1b[31mpassword=hunter22 " + "x" * 9000
    text = JUDGE.last_words(output).text
    assert len(text) <= MOST_CHARACTERS
    assert text.isprintable()
    assert "hunter22" not in text


LOST_STORE = "[rank3]:[W511 06:22:40 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=8): Broken pipe"
WAITS = (
    "E external/xla/xla/service/rendezvous.cc:44] This thread has been waiting for `first call to a collective`"
    + " ; run_id=1" * 20
    + " for 20 seconds and may be stuck. Expected 8 threads to join the rendezvous, but not all of them did."
)


def test_some_warnings_count_only_where_the_process_has_ended() -> None:
    assert JUDGE.classifier.line(LOST_STORE, Source.OUTPUT) is None
    assert JUDGE.last_words(LOST_STORE).error_class == "ConnectionReset"


def test_what_excuses_a_long_line_excuses_its_pieces() -> None:
    assert JUDGE.last_words(WAITS).error_class == ""


def test_the_indented_lines_below_a_printed_exception_are_its_message() -> None:
    output = 'grpc._channel.InactiveRpcError: <RPC that terminated with:\n\tdetails = "Connection refused"\nbye\n'
    assert JUDGE.last_words(output).error_class == "ConnectionReset"


@pytest.mark.parametrize(
    "text", ["ERROR: pip's dependency resolver found conflicts", "Retrying (Retry(total=4)) after x"]
)
def test_a_level_and_a_bare_word_are_no_exception(text: str) -> None:
    assert JUDGE.words(text).error_class == ""


def test_an_error_that_python_left_is_no_reason_even_without_frames() -> None:
    left = "Exception ignored in: <function Loader.__del__ at 0x7f>\nAssertionError: can only test a child process\n"
    assert JUDGE.last_words(left).error_class == ""


@pytest.mark.parametrize(
    ("raised", "ends_the_job"),
    [
        ("trainer.errors.UnknownSplit: no split named 'trian'", True),
        ("ConfigError: tensor parallel size 3", True),
        ("mylib.net.LinkError: connection to the store was lost", False),
        ("botocore.exceptions.SomethingNew: x", False),
        ("mylib.StrangeError: it did not work", False),
    ],
)
def test_an_exception_of_a_programs_own_class_is_the_programs(raised: str, *, ends_the_job: bool) -> None:
    known = JUDGE.get(JUDGE.words(raised).error_class)
    assert (known is not None and known.permanent) is ends_the_job


def test_noise_is_read() -> None:
    for noise in ("[" * 65536, "rank0: " * 9000, 'File "' * 9000, "Error: (" * 8000, "\0" * 65536):
        JUDGE.last_words(noise)


@pytest.mark.parametrize(
    "said",
    [
        "Configuration Error",
        "RuntimeError: Unknown Error",
        "Server down",
        "Low",
        "Link Down",
        "OSError: [Errno 30] Read-only file system: '/checkpoints/latest' (train.py:40 in save)",
    ],
)
def test_what_a_nodes_condition_would_mean_means_nothing_in_a_programs_mouth(said: str) -> None:
    """A job's node is not left for it."""
    words = JUDGE.words(said)
    kind = shipped().get(words.error_class) if words.error_class else None
    assert kind is None or kind.severity is not Severity.SEV1 or not kind.of_hardware


def test_a_log_that_cannot_be_written_tells_of_a_full_disk() -> None:
    words = "--- Logging error ---\nTraceback (most recent call last):\n" + '  File "/a/logging.py", line 9, in emit\n'
    assert shipped_judge().last_words(f"{words}OSError: [Errno 28] No space left on device").error_class == "DiskFull"
    assert shipped_judge().last_words(f"{words}TypeError: not all arguments converted").error_class == ""


@pytest.mark.parametrize("level", ["INFO", "DEBUG", "ERROR"])
def test_an_uncaught_exception_counts_at_any_level_of_a_logger(level: str) -> None:
    rest = 'Traceback (most recent call last):\n  File "/a/train.py", line 9, in step\n'
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    assert shipped_judge().last_words(f"[{level}] train.py: uncaught {rest}{error}").error_class == "EccError"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("distributed.nanny - WARNING - Worker process 771 was killed by signal 9", "ProcessKilled"),
        ("distributed.nanny - WARNING - Worker exceeded 95% memory budget. Restarting", "HostOutOfMemory"),
        ("HorovodAllreduce_grads_7_0 [missing ranks: 4]", "NcclTimeout"),
        (
            "%3|17634388.419|ERROR|rdkafka#producer-1| [thrd:app]: rdkafka#producer-1: 5/5 brokers are down",
            "StorageUnavailable",
        ),
        ("soundfile.LibsndfileError: Error opening 'a.wav': Format not recognised.", "CorruptFile"),
        ("google.api_core.exceptions.NotFound: GET: No such object: ckpt/run7/meta", "StorageDenied"),
    ],
)
def test_what_a_library_may_mend_counts_only_where_the_process_has_ended(said: str, name: str) -> None:
    assert shipped_judge().last_words(said).error_class == name
    finding = shipped_judge().classifier.line(said, Source.OUTPUT)
    assert finding is None or finding.name != name


def test_a_scrap_of_a_long_line_is_not_judged_without_the_words_before_it() -> None:
    line = "RuntimeError: " + "x" * 284 + " of node nic not found"
    assert shipped_judge().last_words(line).error_class != "NicLost"


def test_advice_below_an_error_is_no_error() -> None:
    error = "EE1002: Stream synchronize timeout. rtDeviceSynchronize execute failed"
    said = shipped_judge().last_words(f"{error}\n        Solution: 1. Check whether the network is normal.")
    assert (said.text, said.error_class) == (error, "NcclTimeout")
