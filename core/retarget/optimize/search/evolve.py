"""The search of one kernel: an evolution of legal schedules, ranked by their time.

It starts from the heuristics' schedule, what was found earlier, and mutations of these.  Each generation is
made of the fastest so far, by mutations and now and then by crossing two, and measured as one batch.  What it
proposes depends on the seed and on which candidates were faster, on nothing else.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..schedule import Schedule
from .moves import Mutator

#: Fastest schedules that have offspring.
ELITE = 8
#: Part of the offspring that has two parents.
_CROSSED = 0.2
#: Proposals in a row that were seen before until the search gives up.
_PATIENCE = 200

#: Measures schedules; gives for each {"seconds": ...}, {"rejected": why}, or None where time ran out.
Measure = Callable[[Sequence[Schedule]], Sequence[dict[str, Any] | None]]


@dataclass(slots=True)
class Evolution:
    """The state of a search.

    Attributes
    ----------
    mutator
        Makes legal schedules of others.
    rng
        Where all chance comes from.
    ranked
        (seconds, schedule) of what was right, the fastest first.
    rejected
        Why candidates were rejected, and how many for each reason.
    measured
        How many candidates were measured, rejected ones included.
    """

    mutator: Mutator
    rng: random.Random
    ranked: list[tuple[float, Schedule]] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)
    details: list[dict[str, str]] = field(default_factory=list)
    measured: int = 0
    _seen: set[str] = field(default_factory=set)

    @property
    def best(self) -> float | None:
        """Seconds of the fastest schedule so far."""
        return self.ranked[0][0] if self.ranked else None

    def note(self, schedule: Schedule, result: dict[str, Any] | None) -> None:
        """Take a result into account."""
        self._seen.add(str(schedule))
        if result is None:
            return
        self.measured += 1
        if "seconds" in result:
            self.ranked.append((result["seconds"], schedule))
            self.ranked.sort(key=lambda each: each[0])
            return
        reason = result["rejected"]
        self.rejected[reason] += 1
        self.details.append(
            {"schedule": str(schedule), "reason": reason, "detail": result.get("detail", "")}
        )

    def propose(self, count: int) -> list[Schedule]:
        """Return up to `count` legal schedules that were not seen before."""
        found: list[Schedule] = []
        idle = 0
        while len(found) < count and idle < _PATIENCE:
            parents = [s for _, s in self.ranked[:ELITE]]
            weights = [1.0 / (n + 1) for n in range(len(parents))]
            (one, other) = self.rng.choices(parents, weights, k=2)
            if one is not other and self.rng.random() < _CROSSED:
                child = self.mutator.cross(one, other, self.rng)
            else:
                child = self.mutator.mutate(one, self.rng)
            if child is None or str(child) in self._seen:
                idle += 1
                continue
            self._seen.add(str(child))
            found.append(child)
            idle = 0
        return found

    def run(
        self, measure: Measure, batch: int, candidates: int | None, more: Callable[[], bool]
    ) -> None:
        """Measure generations of `batch` candidates until there were `candidates`, or `more` says no."""
        while more() and (candidates is None or self.measured < candidates):
            count = batch if candidates is None else min(batch, candidates - self.measured)
            proposed = self.propose(count)
            if not proposed:
                return
            for schedule, result in zip(proposed, measure(proposed), strict=True):
                self.note(schedule, result)
