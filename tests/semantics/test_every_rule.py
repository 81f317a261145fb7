"""A rule without a timeline worked out by hand is not done."""

from __future__ import annotations

from pathlib import Path

import pytest

from emo.graph.model import EdgeType

# Without these two there is no graph; their tests have no counterpart without the rule.
ALWAYS = (EdgeType.OP, EdgeType.PROGRAM)


@pytest.mark.parametrize(
    "rule", [rule for rule in EdgeType if rule not in ALWAYS], ids=lambda rule: rule.name
)
def test_every_rule_has_a_test_that_needs_it(rule: EdgeType) -> None:
    here = Path(__file__)
    texts = [path.read_text() for path in here.parent.glob("test_*.py") if path != here]
    calls = [call for text in texts for call in text.split("expect(")[1:]]
    assert any(f"EdgeType.{rule.name}," in call[:80] for call in calls)
