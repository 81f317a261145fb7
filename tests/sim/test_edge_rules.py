"""Every rule of the engine earns its place: without it a what-if misses the truth by more than 5 %."""

from __future__ import annotations

from pathlib import Path

import pytest
from judge import Judge
from stress import STRESS, Stress

from emo.graph.model import EdgeType

ALWAYS = (EdgeType.OP, EdgeType.PROGRAM)


def error(stress: Stress, folder: Path, without: tuple[EdgeType, ...]) -> float:
    judge = Judge.record(
        stress.build(),
        folder,
        conditions=stress.conditions,
        options=stress.options,
        base=stress.recorded,
        without=without,
    )
    return judge.ask(stress.asked).error


@pytest.mark.parametrize("stress", STRESS, ids=lambda stress: stress.rule.name)
def test_the_rule_is_needed(stress: Stress, tmp_path: Path) -> None:
    assert error(stress, tmp_path, ()) < 0.02
    assert error(stress, tmp_path, (stress.rule,)) > 0.05


def test_every_rule_has_its_program() -> None:
    assert {stress.rule for stress in STRESS} == {rule for rule in EdgeType if rule not in ALWAYS}
