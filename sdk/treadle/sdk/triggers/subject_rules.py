"""What may be the subject of a trigger, and which of a stream's subjects hold it; pure."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.sdk.errors import UserError, clause
from treadle.sdk.wording import shown

SUBJECT_CHARS_MAX = 256
IN_FLIGHT_MAX = 10_000
"""Each message in flight is held by the server until its run is over."""


def check_subject(subject: str) -> str:
    """Return the subject; raise ``UserError`` if no message could be told apart by it."""
    tokens = subject.split(".")
    why = ""
    if not 0 < len(subject) <= SUBJECT_CHARS_MAX:
        why = f"it has {len(subject)} characters, and 1 to {SUBJECT_CHARS_MAX} are allowed"
    elif not subject.isprintable() or " " in subject:
        why = "it has white space or a control character in it"
    elif not all(tokens):
        why = "it has an empty part between two dots, before the first or after the last"
    elif ">" in tokens[:-1]:
        why = "> stands for all that follows, so it has to be the last part"
    elif any(len(token) > 1 and set("*>") & set(token) for token in tokens):
        why = "* and > stand for a whole part"
    elif tokens[0].startswith(("$", "_")):
        why = "what begins like this is the server's, and that of its clients"
    elif tokens[0] in ("*", ">"):
        why = "it would hold the messages of everybody, Treadle's own among them"
    if why:
        raise UserError(
            f"subject {shown(subject)} cannot start runs: {clause(why)}. "
            "Write it like orders.created, orders.* or orders.>."
        )
    return subject


def check_in_flight(max_in_flight: int) -> int:
    """Return the bound; raise ``UserError`` if it is none."""
    if not 0 <= max_in_flight <= IN_FLIGHT_MAX:
        raise UserError(
            f"max_in_flight is {max_in_flight}, and must be from 0 (any number) to "
            f"{IN_FLIGHT_MAX}: the server holds each message until its run is over. Correct it."
        )
    return max_in_flight


def holds(held: Iterable[str], subject: str) -> bool:
    """Whether one of a stream's subjects holds every message on ``subject``."""
    return any(_covers(each.split("."), subject.split(".")) for each in held)


def _covers(wide: list[str], narrow: list[str]) -> bool:
    for place, token in enumerate(wide):
        if token == ">":
            return len(narrow) > place
        if place >= len(narrow) or narrow[place] == ">":
            return False
        if token != "*" and token != narrow[place]:
            return False
    return len(wide) == len(narrow)
