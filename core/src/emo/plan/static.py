"""One clock per GPU: candidates, search, and the rungs between full clock and the target.

Choices are tuples of indices into the candidate clocks, one per GPU; 0 is full clock, and a
larger index is a slower clock. The search knows nothing of graphs: it is given what a choice
costs and whether it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, prod

from emo.errors import InfeasibleError
from emo.models.catalogue import GpuModel
from emo.models.priors import MIN_CLOCK_RATIO

MAX_CANDIDATES = 32
MAX_RUNGS = 16
_LEAST_RUNGS = 3
_RUNGS_TIMES_GPUS = 64  # a search takes longer with every GPU: fewer rungs then

# Up to this many combinations are all tried: one GPU with all its candidates, or a few with few.
EXHAUSTIVE_LIMIT = 64

# Distance between candidates where the catalogue has no step.
_UNKNOWN_STEP_MHZ = 15.0

# Gains below this are rounding: the faster clock is kept.
_LEAST_GAIN = 1e-9

Choice = tuple[int, ...]


def candidate_clocks(model: GpuModel) -> list[int]:
    """Clocks to choose from, falling from the highest to half of it, at most MAX_CANDIDATES, in whole MHz."""
    step = model.clock_step_mhz or _UNKNOWN_STEP_MHZ
    lowest = max(model.sm_clock_max_mhz * MIN_CLOCK_RATIO, model.sm_clock_min_mhz or 0)
    count = floor((model.sm_clock_max_mhz - lowest) / step) + 1
    settings = [floor(model.sm_clock_max_mhz - step * i) for i in range(count)]
    settings = [clock for clock in settings if clock >= lowest]
    if len(settings) <= MAX_CANDIDATES:
        return settings
    last = len(settings) - 1
    return [settings[round(i * last / (MAX_CANDIDATES - 1))] for i in range(MAX_CANDIDATES)]


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search. ``exact``: no allowed choice costs less."""

    choice: Choice
    exact: bool


def search(
    slowest: Choice,
    cost: Callable[[Choice], float],
    allowed: Callable[[Choice], bool],
    *,
    starts: Sequence[Choice] = (),
) -> Found:
    """Cheapest allowed choice with no index above ``slowest``.

    Few combinations are all tried. Else this is a heuristic: coordinate descent (one GPU's clock at a
    time, the best of all its clocks, until nothing improves) from full clock, from the cheapest
    allowed clock that is the same everywhere, and from ``starts``. It can miss optima in which two GPUs must
    change together. Deterministic; ties go to the faster clock.

    Raises InfeasibleError if not even full clock is allowed.
    """
    full: Choice = (0,) * len(slowest)
    if not allowed(full):
        raise InfeasibleError("not even full clock meets the target; expected a target of at least 0 %")
    if prod(index + 1 for index in slowest) <= EXHAUSTIVE_LIMIT:
        everything = sorted(
            product(*(range(index + 1) for index in slowest)), key=lambda choice: (cost(choice), choice)
        )
        return Found(next(choice for choice in everything if allowed(choice)), exact=True)
    same = [tuple(min(index, limit) for limit in slowest) for index in range(max(slowest) + 1)]
    cheapest_same = _cheapest(same, full, cost, allowed)
    found = [
        _descend(start, slowest, cost, allowed) for start in dict.fromkeys([full, cheapest_same, *starts])
    ]
    return Found(min(found, key=lambda choice: (cost(choice), choice)), exact=False)


def _descend(
    choice: Choice, slowest: Choice, cost: Callable[[Choice], float], allowed: Callable[[Choice], bool]
) -> Choice:
    """Improve one GPU at a time, the best of all its clocks, until no GPU can be improved."""
    while True:
        before = choice
        for gpu, limit in enumerate(slowest):
            options = [(*choice[:gpu], index, *choice[gpu + 1 :]) for index in range(limit + 1)]
            choice = _cheapest(options, choice, cost, allowed)
        if choice == before:
            return choice


def _cheapest(
    options: Sequence[Choice],
    current: Choice,
    cost: Callable[[Choice], float],
    allowed: Callable[[Choice], bool],
) -> Choice:
    """The cheapest allowed option that is really cheaper than ``current``, else ``current``.

    Costs are cheap to ask for, permission is not: it is asked for in order of cost.
    """
    limit = cost(current) * (1.0 - _LEAST_GAIN)
    for option in sorted(options, key=lambda option: (cost(option), option)):
        if cost(option) >= limit:
            break
        if allowed(option):
            return option
    return current


def frontier(
    slowest: Choice,
    target: float,
    cost: Callable[[Choice], float],
    within: Callable[[Choice, float], bool],
) -> tuple[list[Choice], bool]:
    """Nested choices from full clock to the target, and whether the slowest one is exact.

    Solved for up to MAX_RUNGS targets (fewer for many GPUs, whose searches take long) from the loosest
    to the strictest, each with no GPU slower than in the one before, so that any mixture of two rungs
    is no slower than the slower. A rung that costs as much as a faster one is left out: the last is
    the plan.
    """
    levels = max(_LEAST_RUNGS, min(MAX_RUNGS, _RUNGS_TIMES_GPUS // len(slowest)))
    found = search(slowest, cost, lambda choice: within(choice, target))
    chain = [found.choice]
    for level in range(levels - 2, -1, -1):
        if not any(chain[-1]):
            break
        share = target * level / (levels - 1)
        chain.append(search(chain[-1], cost, lambda choice: within(choice, share)).choice)  # noqa: B023
    full: Choice = (0,) * len(slowest)
    rungs: list[Choice] = []
    for choice in (full, *reversed(chain)):
        if not rungs or cost(choice) < cost(rungs[-1]) * (1.0 - _LEAST_GAIN):
            rungs.append(choice)
    # Full clock came on top of MAX_RUNGS solutions: give up the rung next to it.
    if len(rungs) > MAX_RUNGS:
        del rungs[1]
    return rungs, found.exact and rungs[-1] == found.choice
