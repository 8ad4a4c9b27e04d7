"""Choices: are their branches sound, and do the conditions that ask for one name it rightly?"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import conditions, wording
from treadle.sdk.definition import ChoiceStep, WorkflowDefinition
from treadle.sdk.errors import InvalidId, Problem
from treadle.sdk.identifier import is_id
from treadle.sdk.limits import BRANCHES_MAX, WORD_CHARS_MAX
from treadle.sdk.wording import Suggestions


def problems_of(step: ChoiceStep, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the branches of a choice."""
    branches = wording.field(path, "branches")
    if not 0 < len(step.branches) <= BRANCHES_MAX:
        yield Problem(
            branches,
            f"there are {len(step.branches)} branches, and 1 to {BRANCHES_MAX} are allowed: "
            "their conditions are asked one by one. Let a step name the branch.",
        )
        return
    first: dict[str, int] = {}
    for i, branch in enumerate(step.branches):
        where = wording.item(branches, i)
        yield from _named(wording.field(where, "name"), branch.name)
        earlier = first.setdefault(branch.name, i)
        if earlier != i:
            yield Problem(
                wording.field(where, "name"),
                f"the name {wording.shown(branch.name)} is taken by branches[{earlier}]. Join the "
                "two conditions with or.",
            )
        for text in conditions.problems_of(branch.when, step.after):
            yield Problem(wording.field(where, "when"), text)
    yield from _named(wording.field(path, "default"), step.default)


def problems_of_names(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield the conditions that ask a choice for a branch which it has not."""
    known = {
        step.id: {step.default, *(branch.name for branch in step.branches)}
        for step in definition.steps
        if isinstance(step, ChoiceStep)
    }
    if not known:
        return
    suggestions = Suggestions()
    for i, step in enumerate(definition.steps):
        for choice, name in conditions.compared(step.when):
            if choice in known and isinstance(name, str) and name not in known[choice]:
                nearest = suggestions.nearest(name, known[choice])
                have = ", ".join(map(repr, sorted(known[choice])))
                yield Problem(
                    f"steps[{i}].when",
                    f"choice {wording.shown(choice)} has no branch {wording.shown(name)}. "
                    f"{f'Did you mean {nearest!r}?' if nearest else f'Choose one of {have}.'}",
                )


def reason(step: ChoiceStep, taken: str) -> str:
    """Return why a branch was taken, in words."""
    branch = next((each for each in step.branches if each.name == taken), None)
    if branch is not None:
        return f"took {taken!r}: {branch.when}"
    return f"took {taken!r}: none of its conditions held"


def _named(path: str, name: str) -> Iterator[Problem]:
    if not is_id(name):
        yield Problem(path, str(InvalidId("branch", name[:WORD_CHARS_MAX])))
