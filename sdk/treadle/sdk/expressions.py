"""Is an expression of a definition sound? Its length, its syntax, and what it asks for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import conditions
from treadle.sdk.errors import Problem
from treadle.sdk.limits import CONDITION_CHARS_MAX

OF_A_KEY = "Put what it works out into the input."
"""What to do about a key that is too long."""


def problems_of(
    path: str,
    text: str,
    advice: str,
    *,
    after: tuple[str, ...] = (),
    names: tuple[str, ...] = conditions.OF_STEPS,
    what: str = "it",
) -> Iterator[Problem]:
    """Yield what is wrong with an expression; nothing with an empty one.

    ``advice`` says what to do about one that is too long, and ``what`` calls it by its name.
    """
    if len(text) > CONDITION_CHARS_MAX:
        yield Problem(
            path,
            f"{what} has {len(text)} characters, and {CONDITION_CHARS_MAX} are allowed. {advice}",
        )
    elif text:
        for problem in conditions.problems_of(text, after, names):
            yield Problem(path, problem)
