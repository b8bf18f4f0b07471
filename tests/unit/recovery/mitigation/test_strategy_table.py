"""The table of strategies: what a spec may name, and what is said of a name that only a newer version knows."""

from __future__ import annotations

import msgspec
import pytest

from falcon_core.recovery.mitigation.strategy_table import STRATEGY_TYPES, strategy_type
from falcon_core.recovery.strategies.strategy_type import StrategyType
from falcon_operator.api.policy import Strategy

ACTING = [facts for facts in STRATEGY_TYPES if facts.act]


def test_a_spec_names_the_types_of_the_table_and_no_other() -> None:
    for facts in STRATEGY_TYPES:
        assert msgspec.convert({"type": facts.name}, Strategy).type == facts.name
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'Hope'"):
        msgspec.convert({"type": "Hope"}, Strategy)


def test_a_stored_name_of_a_newer_version_has_no_words() -> None:
    assert strategy_type("Hope") == StrategyType(name="Hope", explanation="", default_seconds=0.0)


@pytest.mark.parametrize("facts", ACTING, ids=lambda facts: facts.name)
def test_what_acts_has_its_words(facts: StrategyType) -> None:
    assert facts.would_act
    assert facts.would_have_acted
    assert facts.explanation.startswith(f"{facts.name} ")
    assert bool(facts.machine_leaves) == facts.needs_node_evidence
