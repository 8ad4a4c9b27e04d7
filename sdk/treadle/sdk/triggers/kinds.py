"""What the kinds of triggers have in common: each is checked, described and compared. Pure."""

from __future__ import annotations

from typing import assert_never

from treadle.sdk.triggers.naming import check_catch_up
from treadle.sdk.triggers.subject_rules import check_in_flight, check_subject
from treadle.sdk.triggers.times import firings_of
from treadle.sdk.triggers.trigger import Cron, Http, On, Subject, Webhook
from treadle.sdk.triggers.web import check_http, check_webhook


def check_on(on: On) -> None:
    """Raise ``UserError`` if a trigger could never fire at this."""
    match on:
        case Cron():
            check_catch_up(on.catch_up)
            firings_of(on.expression, on.zone)
        case Subject():
            check_subject(on.subject)
            check_in_flight(on.max_in_flight)
        case Webhook():
            check_webhook(on)
        case Http():
            check_http(on)
        case _:
            assert_never(on)


def kind_of(on: On) -> str:
    """Return the name of a trigger's kind, as commands have it."""
    return str(on.__struct_config__.tag)


def described(on: On) -> str:
    """Return what a trigger fires at, in a few words."""
    match on:
        case Cron():
            return f"{on.expression!r} ({on.zone})"
        case Subject():
            return f"messages on {on.subject!r}"
        case Webhook():
            return f"deliveries signed as {on.scheme}"
        case Http():
            return f"requests to /api/{on.path}" if on.path else "requests"
        case _:
            assert_never(on)


def is_same(one: On, other: On) -> bool:
    """Whether both fire at the same, so that one takes over as far as the other had come."""
    match one, other:
        case Cron(), Cron():
            return (one.expression, one.zone) == (other.expression, other.zone)
        case Subject(), Subject():
            return one.subject == other.subject
        case (Webhook(), Webhook()) | (Http(), Http()):
            return True
        case _:
            return False
