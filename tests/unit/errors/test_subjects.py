"""The process that a line is about, where launchers, drivers and peers speak of others."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.last_words import Explanation
from falcon_core.errors.subjects import Subject, peeled, subject_of

JUDGE = shipped_judge()


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("(RayTrainWorker pid=8117, ip=10.0.2.2) ValueError: bad shape", Subject(pid=8117, address="10.0.2.2")),
        ("ray.exceptions.RayTaskError(OSError): ray::W.step() (pid=91, ip=10.1.0.3)", Subject(None, 91, "10.1.0.3")),
        ("[1,3]<stderr>: RuntimeError: boom", Subject(rank=3)),
        ("6: KeyError: 'x'", Subject(rank=6)),
        ("srun: error: node14: task 6: Exited with exit code 1", Subject(rank=6, address="node14")),
        ("process rank 2 with PID 771 on node gpu-3 exited on signal 9 (Killed).", Subject(2, 771, "gpu-3")),
        ("Process 771 exits with return code = -9", Subject(pid=771)),
        ("CheckpointException: CheckpointException ranks:dict_keys([2, 6])", Subject(rank=2)),
        ("RuntimeError: [gloo/tcp/pair.cc:5] Connection closed by peer [10.0.0.3]:27189", Subject(address="10.0.0.3")),
        ("connect to 10.0.1.8<52597> returned Connection refused", Subject(address="10.0.1.8")),
        ("ABORTED: /job:jax_worker/replica:0/task:2 heartbeat timeout", Subject(rank=2)),
        ("RuntimeError: rank 3 died", Subject(rank=3)),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", None),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", None),
        ("expected 8 tensors on rank 2", None),
    ],
)  # fmt: skip
def test_the_process_that_a_text_is_about(text: str, subject: Subject | None) -> None:
    assert subject_of(text) == subject
    assert JUDGE.words(text).about == subject


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("(RayTrainWorker pid=8117, ip=10.0.2.2) [rank2]: ValueError: bad", "ValueError: bad"),
        ("[1,3]<stderr>:  indented", " indented"),
        ("[rank2]:   File", "  File"),
        ("step 3: done", "step 3: done"),
    ],
)
def test_marks_before_a_line_are_peeled_off(line: str, rest: str) -> None:
    assert peeled(line)[0] == rest


@pytest.mark.parametrize(
    ("text", "explains"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", Explanation.CAUSE),
        ("my.package.CustomException: unlucky", Explanation.RAISED),
        ("RuntimeError: Connection closed by peer [10.0.0.3]:27189", Explanation.CONSEQUENCE),
        ("srun: error: node14: task 6: Exited with exit code 1", Explanation.FORM),
        ("Received SIGTERM", Explanation.FORM),
        ("epoch 2", Explanation.LITTLE),
        ("", Explanation.LITTLE),
    ],
)
def test_how_much_words_explain(text: str, explains: Explanation) -> None:
    assert JUDGE.words(text).explains is explains


def test_the_form_of_an_end_never_hides_a_consequence_or_a_cause() -> None:
    form, lost = "srun: error: node14: task 6: Exited with exit code 1\n", "recv failed: Connection reset by peer\n"
    assert JUDGE.last_words(lost + form).error_class == "ConnectionReset"
    assert JUDGE.last_words(lost + form + "KeyError: 'x' failed\n" + form).error_class == "ProgramError"


RAY = """Traceback (most recent call last):
  File "/app/driver.py", line 9, in <module>
    ray.get(refs)
ray.exceptions.RayTaskError(RuntimeError): ray::Worker.step() (pid=811, ip=10.84.2.7, actor_id=0a1, repr=<worker.W>)
  File "/app/worker.py", line 40, in step
    loss.backward()
RuntimeError: CUDA error: uncorrectable ECC error encountered
"""


@pytest.mark.parametrize("output", [RAY, "\n".join(RAY.splitlines()[:4] + RAY.splitlines()[6:])])
def test_the_error_of_a_worker_that_a_driver_raises_again_is_the_workers(output: str) -> None:
    said = JUDGE.last_words(output)
    assert said.error_class == "EccError"
    assert said.about == Subject(pid=811, address="10.84.2.7")
    assert JUDGE.words(said.text).about == said.about, "as the operator reads it"
    assert JUDGE.last_words(output.replace("(pid=811, ip=10.84.2.7, actor_id=0a1, repr=<worker.W>)", "")).about is None
