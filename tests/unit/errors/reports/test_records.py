"""Records of loggers: one line that holds a message of several lines, as each logger escapes them."""

from __future__ import annotations

import json

import pytest

from falcon_agent.output.error_lines import LineJudge
from falcon_core.errors.classify import plain_text
from falcon_core.errors.judge import ErrorRules, job_judge, shipped_judge
from falcon_core.errors.records import message_bytes, message_lines, one_line
from falcon_core.errors.table import Domain, JobRule, Source
from falcon_core.model import Severity

OWN = """Traceback (most recent call last):
  File "/opt/job/train.py", line 71, in main
    loss = model(batch)
ValueError: expected sequence of length 64 at dim 1 (got 63)"""
SAID = "ValueError: expected sequence of length 64 at dim 1 (got 63) (train.py:71 in main)"
ECC = """Traceback (most recent call last):
  File "/opt/job/train.py", line 80, in main
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered
CUDA kernel errors might be asynchronously reported at some other API call."""
WHEN = "2026-11-04T10:00:00.123456789Z"


def _docker(text: str) -> str:
    return json.dumps({"log": f"{text}\n", "stream": "stderr", "time": WHEN})


TRACEBACKS = {
    "Docker, one record": _docker(OWN),
    "Docker, a record a line": "\n".join(map(_docker, OWN.split("\n"))),
    "the CRI's format": "\n".join(f"{WHEN} stderr F {line}" for line in OWN.split("\n")),
    "exc_info": json.dumps({"level": "ERROR", "logger": "train", "message": "step failed", "exc_info": OWN}),
    "structlog": json.dumps({"event": "step failed", "level": "error", "exception": OWN}),
    "a field in a field": json.dumps({"level": "ERROR", "fields": {"message": "failed", "error": {"stack": OWN}}}),
    "JSON in Docker's JSON": _docker(json.dumps({"level": "ERROR", "message": OWN})),
    "Python's repr": f"worker 3 failed: {OWN!r}",
    "logfmt": f'time="{WHEN}" level=error msg={json.dumps(OWN)} rank=3',
    "klog": f'E1104 10:00:00.123456       1 worker.go:88] "Step failed" err={json.dumps(OWN)} rank=3',
}
MESSAGES = {
    "colours": (
        json.dumps(
            {"level": "error", "message": "\x1b[31mstep 3\x1b[0m\n\x1b[1;31mCUDA error: uncorrectable ECC error"}
        ),
        "EccError",
    ),
    "tabs": (
        json.dumps(
            {"level": "error", "message": "rank 3:\ttorch.OutOfMemoryError: CUDA out of memory. Tried to allocate"}
        ),
        "CudaOutOfMemory",
    ),
    "Java's causes": (
        json.dumps(
            {
                "level": "ERROR",
                "stack_trace": "org.apache.spark.SparkException: Job aborted\n\tat a.b.C.run(C.scala:44)\n"
                "Caused by: java.io.IOException: No space left on device\n\tat java.io.FileOutputStream.write(F.java)",
            }
        ),
        "DiskFull",
    ),
    "a panic of Rust": (
        json.dumps(
            {
                "level": "ERROR",
                "fields": {
                    "message": "thread 'main' panicked at src/loader.rs:88:14:\ncalled `Result::unwrap()` on an `Err`"
                    ' value: Os { code: 28, kind: StorageFull, message: "No space left on device" }'
                },
            }
        ),
        "DiskFull",
    ),
    "a panic of Go": (
        _docker(
            "panic: runtime error: invalid memory address or nil pointer dereference\n[signal SIGSEGV: segmentation"
            " violation code=0x1 addr=0x0 pc=0x4a1b2c]\n\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:12 +0x2f"
        ),
        "ProcessCrashed",
    ),
    "std::terminate": (
        json.dumps(
            {
                "level": "fatal",
                "message": "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error:"
                " uncorrectable ECC error encountered\nException raised from c10_cuda_check_implementation",
            }
        ),
        "EccError",
    ),
}


@pytest.mark.parametrize("form", TRACEBACKS)
def test_a_traceback_in_a_record_is_read_as_a_traceback(form: str) -> None:
    found = shipped_judge().last_words(TRACEBACKS[form])
    assert (found.text, found.error) == (SAID, "ValueError")


@pytest.mark.parametrize("mark", ["[rank3]: ", "(RayTrainWorker pid=81, ip=10.0.0.3) ", "\x1b[31m"])
def test_marks_of_launchers_stay_before_each_line_of_a_record(mark: str) -> None:
    record = TRACEBACKS["exc_info"]
    found = shipped_judge().last_words(mark + record)
    assert found.text.endswith(SAID)
    assert found.error_class == shipped_judge().last_words(record).error_class


@pytest.mark.parametrize("form", MESSAGES)
def test_the_cause_is_found_in_any_line_of_a_record(form: str) -> None:
    record, name = MESSAGES[form]
    assert shipped_judge().last_words(record).error_class == name
    read = LineJudge(lambda: shipped_judge().classifier).read(f"step 7 loss 2.1\n{record}\n".encode())
    assert name in {each.error_class.name for each in read if each.error_class is not None}


def test_an_agent_quotes_the_line_of_the_record_that_says_it() -> None:
    read = LineJudge(lambda: shipped_judge().classifier).read(f"{_docker(ECC)}\nstep 8\n".encode())
    texts = {each.text for each in read}
    assert "RuntimeError: CUDA error: uncorrectable ECC error encountered (train.py:80 in main)" in texts


@pytest.mark.parametrize("pattern", ["^licence server busy", r'"code": 42'])
def test_a_jobs_own_rule_is_about_a_line_of_the_message_or_about_the_record(pattern: str) -> None:
    rule = JobRule(pattern=pattern, severity=Severity.SEV3, domain=Domain.PROGRAM, remedy="Ask for a licence.")
    record = json.dumps({"level": "error", "message": "start failed\nlicence server busy", "code": 42})
    said = job_judge(ErrorRules(rules=(rule,))).last_words(f"{record}\nValueError: bad shape\n")
    assert "licence server busy" in said.text


@pytest.mark.parametrize("level", ["info", "WARNING", "debug"])
def test_a_record_that_its_logger_calls_harmless_stays_so(level: str) -> None:
    record = json.dumps(
        {"level": level, "message": "fetch failed\nConnectionResetError: [Errno 104] reset", "attempt": 1}
    )
    assert message_lines(record) == record
    assert not LineJudge(lambda: shipped_judge().classifier).read(f"{record}\n".encode())


@pytest.mark.parametrize(
    "line",
    [
        "step 7 | loss 2.31 | tokens/s 91822",
        r"open C:\new\train.txt: the folder is empty",
        r"pattern ^\n+$ matches 12 lines",
        '{"step": 7, "loss": 2.31}',
        '{"log": 7, "stream": "stderr"}',
        '{"MESSAGE": [300, "x"]}',
        '{"exc_info": "a\\nb"',
        "{" * 5000 + "\\n",
    ],
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert message_lines(line) == line
    assert message_bytes(line.encode()) == line.encode()


def test_bytes_that_are_no_text_stay() -> None:
    assert message_bytes(b"\xff \\n \x80") == b"\xff \\n \x80"


XID = "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize("message", [f"first\n{XID}", list(f"\x1b[31m{XID}\x1b[0m".encode()), XID])
def test_a_journals_record_gives_its_message(message: object) -> None:
    record = json.dumps({"_HOSTNAME": "n1", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "kernel", "MESSAGE": message})
    finding = shipped_judge().classifier.line(record, Source.KERNEL)
    assert finding is not None
    assert finding.name == "GpuLost"


def test_a_reports_escapes_hide_no_word() -> None:
    report = r"nvidia check: %!s(*errors.errorString=&{GPU 3 NVLink\nNVLink 4 is down: link training failed})"
    found = shipped_judge().report(report)
    assert found is not None
    assert found.name == "NvlinkError"
    assert one_line(r"Normal  Healthy  node/n1  checked:\n\tno fault") == "Normal  Healthy  node/n1  checked:  no fault"
    assert plain_text(report, Source.CONDITION).count("\n") == 0
