"""Numbers are read from what trainers print, and those that stay NaN or infinite are found."""

from __future__ import annotations

import pytest

from falcon_core.anomalies.output_numbers import (
    HEALED,
    HEALED_AFTER_TURNS,
    MOST_NEWS,
    NEEDED_OF_GRADIENTS,
    SHIPPED,
    MetricError,
    Numbers,
    check_metrics,
    usable_metrics,
)
from falcon_core.wire.reporting.anomalies import MAX_METRICS, OutputMetric

OWN = OutputMetric(name="perplexity", pattern="ppl[=: ]+([0-9.eE+-]+|nan|inf)")


def standing(*lines: str, metrics: tuple[OutputMetric, ...] = SHIPPED) -> list[str]:
    numbers = Numbers()
    for line in lines:
        numbers.read(metrics, f"{line}\n".encode(), 1.0, None)
    return [each.name for each in numbers.standing]


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': nan, 'grad_norm': 1.2, 'learning_rate': 4e-05, 'epoch': 0.1}",  # Hugging Face Trainer
        "{'loss': 'nan', 'grad_norm': '1.2'}",  # its newest releases
        "Epoch 0:  50%|#####     | 50/100 [00:01<00:01, 33.1it/s, v_num=0, train_loss_step=nan.0]",  # Lightning
        "Epoch 3:  10%| 10/100 [00:01<00:01, loss=nan, v_num=3]",
        " iteration      100/  1000 | consumed samples: 100 | lm loss: nan | loss scale: 1.0 |",  # Megatron
        "\x1b[31mstep:  1  \x1b[32mloss: nan  \x1b[38;2;180;60;0mgrad_norm:  1.2\x1b[39m",  # torchtitan
        "1|10|Loss: inf: 10%|#         | 10/100",  # torchtune
        "Step 10 | loss:nan lr:2e-05 tokens_per_second_per_gpu:100",
        "step 10 loss nan",
        "train_loss = -inf",
    ],
)
def test_shapes_of_common_trainers_are_known(line: str) -> None:
    assert standing(line) == []
    assert standing(line, line) == ["loss"]


@pytest.mark.parametrize(
    "line",
    [
        "{'eval_loss': nan, 'epoch': 1.0}",  # of no step
        "val_loss=nan",
        "| loss scale: inf |",
        "lossless nan",
        "loss is nan",
        "loss: 1.5e+02",
        "loss: nanoseconds",
        "no number: loss",
        "{'loss': 0.0, 'grad_norm': nan}",  # one step that mixed precision skips
    ],
)
def test_other_lines_are_no_loss_that_is_nan(line: str) -> None:
    assert standing(*[line] * 3) == []


def test_gradients_may_overflow_some_steps_and_not_for_long() -> None:
    line = "{'loss': 1.0, 'grad_norm': inf}"
    assert standing(*[line] * (NEEDED_OF_GRADIENTS - 1)) == []
    assert standing(*[line] * NEEDED_OF_GRADIENTS) == ["gradNorm"]


def test_the_first_line_and_iteration_are_kept() -> None:
    numbers = Numbers()
    numbers.read(SHIPPED, b"start\nstep 7 loss nan\n", 5.0, 7)
    numbers.read(SHIPPED, b"step 8 loss nan\n", 9.0, 8)
    (found,) = numbers.standing
    assert (found.line, found.iteration, found.seconds) == (b"step 7 loss nan", 7, 5.0)


def test_the_last_finite_value_before_it_is_kept() -> None:
    numbers = Numbers()
    for seconds, line in ((1.0, b"loss 3\n"), (2.0, b"loss 2\n"), (3.0, b"loss nan\n"), (4.0, b"loss nan\n")):
        numbers.read(SHIPPED, line, seconds, None)
    numbers.read(SHIPPED, b"loss 1\n", 5.0, None)
    numbers.read(SHIPPED, b"loss nan\n", 6.0, None)
    assert [each.finite_seconds for each in numbers.standing] == [2.0]
    never = Numbers()
    never.read(SHIPPED, b"loss nan\nloss nan\n", 1.0, None)
    assert [each.finite_seconds for each in never.standing] == [None]


def test_it_is_over_after_some_numbers_and_not_after_one() -> None:
    bad, good = "loss nan", "loss 1.2"
    assert standing(bad, bad, good) == ["loss"]
    assert standing(bad, bad, *[good] * HEALED) == []
    assert standing(bad, good, bad, good, bad) == []


def test_turns_are_news_and_only_some_of_them() -> None:
    numbers = Numbers()
    bad, good = b"loss nan\n" * 2, b"loss 1\n" * HEALED
    news = [numbers.read(SHIPPED, lines, 1.0, None) for _ in range(MOST_NEWS) for lines in (bad, good)]
    assert news == [True] * MOST_NEWS + [False] * MOST_NEWS


def test_a_number_that_keeps_turning_heals_only_after_a_long_while() -> None:
    """Each turn becomes an Event and a write of the status, so that a program may not make them without end."""
    numbers, turns, stood = Numbers(), 0, False
    for _ in range(200):
        for lines in (b"loss nan\n" * 2, b"loss 1\n" * HEALED):
            numbers.read(SHIPPED, lines, 1.0, None)
            turns, stood = turns + (bool(numbers.standing) != stood), bool(numbers.standing)
    assert turns <= MOST_NEWS + 1
    for _ in range(HEALED_AFTER_TURNS):
        numbers.read(SHIPPED, b"loss 1\n", 2.0, None)
    assert not numbers.standing


def test_a_jobs_own_metric_stands_beside_the_shipped_or_takes_ones_place() -> None:
    metrics = usable_metrics([OWN])
    assert [metric.name for metric in metrics] == ["perplexity", "loss", "gradNorm"]
    assert standing("ppl: nan", "ppl: nan", metrics=metrics) == ["perplexity"]
    loss = OutputMetric(name="loss", pattern="L=([a-z0-9.]+)")
    assert standing("loss: nan", "loss: nan", metrics=usable_metrics([loss])) == []
    assert standing("L=nan", "L=word", "L=nan", metrics=usable_metrics([loss])) == ["loss"]


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ([OutputMetric(name="a", pattern="loss nan")], "spec.anomalies.metrics[0].pattern: has 0 groups"),
        ([OWN, OutputMetric(name="a", pattern="(a)(b)")], "spec.anomalies.metrics[1].pattern: has 2 groups"),
        ([OutputMetric(name="a", pattern="(a")], "spec.anomalies.metrics[0].pattern: is no pattern of RE2"),
        ([OutputMetric(name="a", pattern=r"(a)\1")], "spec.anomalies.metrics[0].pattern: is no pattern of RE2"),
        ([OutputMetric(name="a", pattern="(" + "a" * 256 + ")")], "spec.anomalies.metrics[0].pattern: has 258"),
        ([OutputMetric(name="a", pattern="(x*)")], "spec.anomalies.metrics[0].pattern: matches an empty line"),
        ([OutputMetric(name="a", pattern="((x{100}){100}){100}")], "spec.anomalies.metrics[0].pattern: is no pattern"),
        ([OutputMetric(name="a", pattern="(?s)(a)(?:.?x{20}){900}")], "spec.anomalies.metrics[0].pattern: is no"),
        ([OWN, OWN], "spec.anomalies.metrics[1].name: perplexity stands twice"),
        ([OutputMetric(name="a b", pattern="(a)")], "spec.anomalies.metrics[0].name: 'a b' is no name"),
        ([OWN] * (MAX_METRICS + 1), f"spec.anomalies.metrics: has {MAX_METRICS + 1} entries"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused_with_field_and_remedy(metrics: list[OutputMetric], said: str) -> None:
    with pytest.raises(MetricError) as refused:
        check_metrics(metrics)
    assert str(refused.value).startswith(said)
    assert "; " in str(refused.value)
    assert usable_metrics(metrics) == SHIPPED
