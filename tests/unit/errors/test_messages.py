"""Messages of several lines, boxes, colours, groups and marks: what a process's output says of its failure."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.last_words import Explanation
from falcon_core.errors.subjects import Subject

JUDGE = shipped_judge()
PLAIN = """Traceback (most recent call last):
  File "/opt/job/train.py", line 40, in step
    loss = model(batch)
ValueError: bad shape
"""
RICH = """\
╭─────────────────────────── Traceback (most recent call last) ────────────────────────────╮
│ /opt/job/train.py:40 in step                                                             │
│                                                                                          │
│   38 def step(model, batch):                                                             │
│ ❱ 40     loss = model(batch)                                                             │
│                                                                                          │
│ /opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py:1553 in _call_impl     │
╰──────────────────────────────────────────────────────────────────────────────────────────╯
ValueError: bad shape
"""
COLOURED = (
    "Traceback (most recent call last):\n"
    '  File \x1b[35m"/opt/job/train.py"\x1b[0m, line \x1b[35m40\x1b[0m, in \x1b[35mstep\x1b[0m\n'
    "    loss = \x1b[31mmodel\x1b[0m\x1b[1;31m(batch)\x1b[0m\n"
    "\x1b[1;35mValueError\x1b[0m: \x1b[35mbad shape\x1b[0m\n"
)
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/opt/job/train.py", line 90, in main
  |     async with asyncio.TaskGroup() as group:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/job/train.py", line 40, in step
    |     loss = model(batch)
    | ValueError: bad shape
    +------------------------------------
"""


def marked(text: str, mark: str) -> str:
    return "".join(mark + line + "\n" for line in text.splitlines())


@pytest.mark.parametrize("form", [PLAIN, RICH, COLOURED, GROUP], ids=["plain", "rich", "coloured", "group"])
@pytest.mark.parametrize("mark", ["", "[rank3]: ", "[default1]:", "(RayTrainWorker pid=81, ip=10.0.0.3) ", "3: "])
def test_the_error_and_its_place_in_each_form(form: str, mark: str) -> None:
    found = JUDGE.last_words(marked(form, mark))
    assert found.text.endswith("ValueError: bad shape (train.py:40 in step)")
    assert (found.error, found.error_class, found.explains) == ("ValueError", "ProgramError", Explanation.CAUSE)
    assert JUDGE.words(found.text) == found, "the operator judges alike, by the text alone"


def test_a_line_of_another_process_names_it() -> None:
    found = JUDGE.last_words(marked(PLAIN, "(RayTrainWorker pid=81, ip=10.0.0.3) "))
    assert found.about == Subject(pid=81, address="10.0.0.3")
    assert JUDGE.last_words(marked(PLAIN, "[rank3]: ")).about is None


def test_tracebacks_of_several_processes_may_be_mixed() -> None:
    one = marked(PLAIN, "[1,0]<stderr>: ").splitlines()
    two = marked(PLAIN.replace("ValueError: bad shape", "MemoryError"), "[1,1]<stderr>: ").splitlines()
    mixed = "\n".join(line for pair in zip(one, two, strict=True) for line in pair)
    assert {JUDGE.last_words(mixed).error_class} <= {"ProgramError", "HostOutOfMemory"}
    assert "train.py:40" in JUDGE.last_words(mixed).text


def test_an_error_that_is_handed_on_is_the_other_ranks() -> None:
    found = JUDGE.last_words(
        "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])\n"
        "Traceback (most recent call last): (RANK 2)\n"
        '  File "/opt/job/save.py", line 9, in plan\n'
        "    assert metadata is not None\n"
        "AssertionError\n"
    )
    assert found.text == "(RANK 2) AssertionError (save.py:9 in plan)"
    assert (found.error, found.about) == ("AssertionError", Subject(rank=2))


@pytest.mark.parametrize(
    "left",
    [
        "Exception ignored in: <function _ConnectionBase.__del__ at 0x7f12>\n",
        "Exception ignored on calling ctypes callback function <function f>:\n",
        "--- Logging error ---\n",
    ],
)
def test_errors_that_the_interpreter_leaves_end_nothing(left: str) -> None:
    assert JUDGE.last_words(left + PLAIN).error_class == ""
    found = JUDGE.last_words(PLAIN.replace("bad shape", "first") + left + PLAIN)
    assert found.text == "ValueError: first (train.py:40 in step)"


@pytest.mark.parametrize(
    ("output", "error_class", "explains", "words"),
    [
        (  # NCCL and PyTorch: the cause under "Last error:"
            PLAIN.replace("ValueError: bad shape", "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, "
            "remote process exited or there was a network error, NCCL version 2.27.3")
            + "ncclRemoteError: a call failed, maybe since a remote process has ended.\n"
            "Last error:\nsocketProgress: Connection closed by remote peer node-2<41234>\n",
            "RemoteError", Explanation.CONSEQUENCE, "NCCL error",
        ),
        (
            PLAIN.replace("ValueError: bad shape", "torch.distributed.DistBackendError: NCCL error in: x.cpp:9, "
            "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3")
            + "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 214 'uncorrectable ECC error encountered'\n",
            "EccError", Explanation.CAUSE, "DistBackendError: Cuda failure 214",
        ),
        (  # the form of an end, after and before what says more
            "RuntimeError: Connection reset by peer\nterminate called without an active exception\nAborted\n",
            "ConnectionReset", Explanation.CONSEQUENCE, "Connection reset",
        ),
        (
            PLAIN + "terminate called after throwing an instance of 'c10::Error'\nFatal Python error: Aborted\n",
            "ProgramError", Explanation.CAUSE, "ValueError",
        ),
        (PLAIN + "wandb: ERROR Run was not synced\n", "ProgramError", Explanation.CAUSE, "ValueError"),
        ("*** Check failure stack trace: ***\nAborted (core dumped)\n", "ProcessCrashed", Explanation.FORM, "Aborted"),
    ],
)  # fmt: skip
def test_the_line_that_explains_most(output: str, error_class: str, explains: Explanation, words: str) -> None:
    found = JUDGE.last_words(output)
    assert (found.error_class, found.explains) == (error_class, explains)
    assert words in found.text
    assert JUDGE.words(found.text) == found


def test_an_error_that_rays_driver_raises_again_is_the_workers() -> None:
    found = JUDGE.last_words(
        "Traceback (most recent call last):\n"
        '  File "/opt/job/driver.py", line 12, in <module>\n'
        "    ray.get(refs)\n"
        "ray.exceptions.RayTaskError(AcceleratorError): ray::Trainer.step() (pid=2211, ip=10.1.0.3, actor_id=1b)\n"
        '  File "/opt/job/train.py", line 40, in step\n'
        "    loss.backward()\n"
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
    )
    assert found.error_class == "EccError"
    assert found.about == Subject(pid=2211, address="10.1.0.3")
    assert "train.py:40 in step" in found.text
