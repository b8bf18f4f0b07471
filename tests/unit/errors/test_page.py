"""docs/errors.md says what the table says."""

from __future__ import annotations

import re

import msgspec
import pytest
import yaml

from dev.error_classes import PAGE, page
from falcon_core.errors.table import JobRule, Overrides, shipped


def test_the_page_is_made_from_the_table() -> None:
    assert page(PAGE.read_text(), shipped()) == PAGE.read_text()
    with pytest.raises(ValueError, match="no place for the tables"):
        page("# Errors", shipped())


def test_the_examples_on_the_page_can_be_used() -> None:
    own, job = (yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
    merged = shipped().merged(own)
    assert merged.get("RackHot")
    rules = msgspec.convert(job, tuple[JobRule, ...])
    assert merged.of_job(rules).exit_class(42) is not None
    assert shipped().merged(Overrides()) == shipped()
