"""Play a workflow once for each moment at which something can die, and compare how it ends.

    first      the life without a crash: its result, and the boundaries it passes
    then       one life for each boundary and each way to die there, by kill -9
    last       one life in which every message and every task is delivered twice

All lives are simulated: the real core, the real handlers, virtual time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk import effects_seen
from treadle.sdk.builder import Workflow
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import RunCancelled, RunConflict, RunFailed
from treadle.sdk.testing.boundaries import Boundaries, Side, Victim, Writer
from treadle.sdk.testing.quieting import logged_once
from treadle.sdk.testing.simulation import SimulatedRun, prepared

if TYPE_CHECKING:
    from treadle.sdk.testing.simulation import Serving

FAULTS_SHOWN_MAX = 20
SHOWN_CHARS_MAX = 200
_alone = threading.Lock()
"""One life of a process at a time: its effects are counted."""


class Boundary(msgspec.Struct, frozen=True):
    """A message that is stored in a life."""

    what: str
    by: Writer
    number: int
    """It is so many times that this was stored before, from 0."""


class CrashReport(msgspec.Struct, frozen=True):
    """What was tried: nothing of it has changed the outcome."""

    outcome: Any
    """That of the life without a crash: its result, or what ``compare`` made of it."""
    boundaries: tuple[Boundary, ...]
    lives: int

    def __str__(self) -> str:
        crashes = self.lives - 2  # Nothing dies in the first, and in the last all comes twice.
        return (
            f"survives {self.lives} lives, {crashes} crashes at {len(self.boundaries)} boundaries: "
            f"comes to {_shown(self.outcome)} in each"
        )


class CrashesShow(AssertionError):
    """A crash or a second delivery changes what the workflow comes to. ``faults`` say which."""

    def __init__(self, workflow: str, faults: list[str], lives: int) -> None:
        self.faults = tuple(faults)
        shown = "\n".join(f"  - {fault}" for fault in faults[:FAULTS_SHOWN_MAX])
        more = len(faults) - FAULTS_SHOWN_MAX
        rest = f"\n  and {more} more" if more > 0 else ""
        super().__init__(
            f"workflow {workflow!r} does not survive {len(faults)} of {lives} crashes:\n{shown}"
            f"{rest}\nWhat a handler does before its next checkpoint or verdict happens again "
            "after a crash: checkpoint first that it begins, and find out when it is repeated "
            "(docs/testing.md)."
        )


async def crash_everywhere(
    workflow: Workflow | WorkflowDefinition,
    input: Any,
    worker: Serving,
    *,
    compare: Callable[[SimulatedRun], Any] | None = None,
    before: Callable[[], None] | None = None,
    **options: Any,
) -> CrashReport:
    """Assert that the workflow comes to the same whatever dies, and whatever comes twice.

    It is simulated, with the ``options`` of ``simulate``, once without a crash, and then again and
    again: worker, engine or both are killed before and after each message that is stored, and in a
    last life every message and task is delivered twice. Raises ``CrashesShow``, an
    ``AssertionError``, if a life ends otherwise, or an effect is repeated that must not be: a tool
    call with ``effect="once"``, or what a test's double tells to ``happened(key)``.

    ``worker`` may be a function that makes one: it is called for each process, so that what a
    handler keeps in memory dies with it. ``compare`` says what has to be the same of a run; by
    default its result, or how it failed or what it waits for. It must not hold times or attempts.
    ``before`` is called at the beginning of each life.
    """
    life = prepared(workflow, input, worker, **options)

    def live(boundaries: Boundaries) -> SimulatedRun:
        if before is not None:
            before()
        return life(boundaries)

    with logged_once():
        return await asyncio.to_thread(_everywhere, workflow.name, live, compare or outcome_of)


def outcome_of(run: SimulatedRun) -> Any:
    """Return a run's result; of one without, its status and why."""
    try:
        return run.result()
    except (RunFailed, RunCancelled):
        return (run.status, run.reason)
    except RunConflict:
        return (run.status, run.waits_for)


def _everywhere(
    name: str, live: Callable[[Boundaries], SimulatedRun], compare: Callable[[SimulatedRun], Any]
) -> CrashReport:
    first = _Life(None)
    expected = first.play(live, compare)
    faults: list[str] = []
    deaths = [death for boundary in first.passed for death in _deaths(boundary)]
    lives = [*(_Life(death) for death in deaths), _Life(None, twice=True)]
    for life in lives:
        outcome = life.play(live, compare)
        found = life.repeated(first)
        if outcome != expected:
            found.append(f"it comes to {_shown(outcome)} instead of {_shown(expected)}")
        faults += [f"{life}: {fault}" for fault in found]
    if faults:
        raise CrashesShow(name, faults, len(lives))
    return CrashReport(expected, tuple(first.passed), len(lives) + 1)


class _Death(msgspec.Struct, frozen=True):
    boundary: Boundary
    side: Side
    victim: Victim

    def __str__(self) -> str:
        at = self.boundary
        again = f" for the {_ordinal(at.number + 1)} time" if at.number else ""
        return f"{self.victim} killed {self.side} the {at.what} is stored{again}"


def _deaths(boundary: Boundary) -> list[_Death]:
    """Return the ways to die at a boundary. An engine that does nothing may die unnoticed."""
    sides: tuple[Side, ...] = ("before", "after")
    victims: tuple[Victim, ...] = ("worker",)
    if boundary.by == "engine":
        victims = ("worker", "engine", "worker and engine")
    return [_Death(boundary, side, victim) for side in sides for victim in victims]


class _Life(Boundaries):
    """One simulated life, in which at most one thing goes wrong."""

    def __init__(self, death: _Death | None, *, twice: bool = False) -> None:
        self._death = death
        self.twice = twice
        self._seen: Counter[str] = Counter()
        self._effects: Counter[str] = Counter()
        self.passed: list[Boundary] = []

    def __str__(self) -> str:
        return str(self._death) if self._death else "everything delivered twice"

    def repeated(self, first: _Life) -> list[str]:
        """Return the effects that happened more often than in the life without a crash."""
        return [
            f"the effect {key!r} happens {count} times instead of {first._effects[key] or 1}"
            for key, count in self._effects.items()
            if count > max(1, first._effects[key])
        ]

    def play(
        self, live: Callable[[Boundaries], SimulatedRun], compare: Callable[[SimulatedRun], Any]
    ) -> Any:
        """Live it, and return what it comes to."""

        def happened(key: str) -> None:
            self._effects[key] += 1

        with _alone:
            effects_seen.observer = happened
            try:
                return compare(live(self))
            finally:
                effects_seen.observer = None

    def reach(self, what: str, by: Writer, side: Side) -> Victim:
        if side == "before":
            boundary = Boundary(what, by, self._seen[what])
            self.passed.append(boundary)
            self._seen[what] += 1
        else:
            boundary = Boundary(what, by, self._seen[what] - 1)
        death = self._death
        is_now = death is not None and (death.side, death.boundary) == (side, boundary)
        return death.victim if death is not None and is_now else ""


def _ordinal(number: int) -> str:
    ending = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{ending}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
