"""The stream and the consumer of a subject trigger, as JetStream has them.

    a stream of the user holds the subject ──> a consumer of it
    none does ──────────────────────────────> a stream of the namespace captures it

Clients attach when they create a trigger, so that what cannot be is refused there, and messages
count from the acknowledgement on. Engines hold to it: they make the same again if it is gone.
"""

from __future__ import annotations

from typing import Any

from treadle.sdk.bus.acks import CONSUMER_NOT_FOUND, STREAM_NOT_FOUND
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.bus.retrying import BUDGET_S, Backoff
from treadle.sdk.errors import UserError
from treadle.sdk.ids import new_nonce
from treadle.sdk.subjects import Subjects
from treadle.sdk.triggers.naming import digest
from treadle.sdk.triggers.subject_rules import holds
from treadle.sdk.triggers.trigger import Source, Subject
from treadle.sdk.wording import shown

_SECOND_NS = 1_000_000_000
CAPTURED_MAX_AGE_S = 7 * 24 * 3600
"""How long a captured message is kept, handled or not: a week of engines that are down."""
UNPULLED_S = 300
"""A consumer whose trigger was never stored, because its client died, goes after so long."""
ACK_WAIT_S = 5.0
ACK_PENDING_MAX = 1_000
"""Messages handed out at once of a trigger without a bound of its own."""


async def attach(js: JetStream, subjects: Subjects, name: str, on: Subject) -> Source:
    """Return the source of a new trigger, made; raise ``UserError`` if its subject cannot be one.

    An engine that finds the trigger stored lets the consumer stay.
    """
    stream, is_captured = await _stream_of(js, subjects, on.subject)
    info = await _call(js, f"STREAM.INFO.{stream}", None)
    is_queue = info["config"].get("retention") == "workqueue"
    source = Source(
        stream=stream,
        consumer=subjects.source_consumer(name, new_nonce()),
        first=0 if is_queue else int(info["state"]["last_seq"]) + 1,
        is_captured=is_captured,
    )
    config = {**consumer_config(source, on), "inactive_threshold": UNPULLED_S * _SECOND_NS}
    body = {"stream_name": stream, "config": config, "action": "create"}
    try:
        await _call(js, f"CONSUMER.CREATE.{stream}.{source.consumer}.{on.subject}", body)
    except ApiError as exc:
        raise UserError(
            f"subject {shown(on.subject)} cannot start runs: stream {stream!r}, which holds it, "
            f"refused a consumer ({exc.description}). Let the stream take one more, or give the "
            "trigger a subject of its own."
        ) from exc
    return source


async def hold(js: JetStream, subjects: Subjects, source: Source, on: Subject) -> None:
    """Make what a source stands for, if it is gone, and let it stay."""
    if source.is_captured:
        await js.ensure_stream(await _capture(js, subjects, on.subject))
    config = {**consumer_config(source, on), "inactive_threshold": 0}
    await js.ensure_consumer(source.stream, source.consumer, config)


async def release(js: JetStream, source: Source, *, with_stream: bool) -> None:
    """Delete a source's consumer, and with it a stream that was made for it; twice is once."""
    tail = f"CONSUMER.DELETE.{source.stream}.{source.consumer}"
    try:
        await _call(js, tail, None)
        if with_stream:
            await _call(js, f"STREAM.DELETE.{source.stream}", None)
    except ApiError as exc:
        if exc.err_code == CONSUMER_NOT_FOUND and with_stream:
            await _delete_stream(js, source.stream)
        elif exc.err_code not in (CONSUMER_NOT_FOUND, STREAM_NOT_FOUND):
            raise


def consumer_config(source: Source, on: Subject) -> dict[str, Any]:
    """Return the configuration of a trigger's consumer."""
    begins: dict[str, Any] = {"deliver_policy": "all"}
    if source.first:
        begins = {"deliver_policy": "by_start_sequence", "opt_start_seq": source.first}
    return {
        **begins,
        "durable_name": source.consumer,
        "ack_policy": "explicit",
        "filter_subject": on.subject,
        "ack_wait": round(ACK_WAIT_S * _SECOND_NS),
        "max_ack_pending": on.max_in_flight or ACK_PENDING_MAX,
        "max_deliver": -1,
        "max_waiting": 512,
    }


async def _stream_of(js: JetStream, subjects: Subjects, subject: str) -> tuple[str, bool]:
    """Return the stream that holds a subject, and whether it is one made for triggers."""
    found: list[str] = (await _call(js, "STREAM.NAMES", {"subject": subject})).get("streams") or []
    captured = subjects.capture_stream(digest(subject))
    if not found:
        await js.ensure_stream(await _capture(js, subjects, subject))
        return captured, True
    if own := sorted(subjects.own_streams.intersection(found)):
        raise UserError(
            f"subject {shown(subject)} cannot start runs: stream {own[0]!r} of Treadle itself "
            "has messages on it, and each run would start others. Choose another subject."
        )
    configs = {
        stream: (await _call(js, f"STREAM.INFO.{stream}", None))["config"] for stream in found
    }
    held = {stream: list(config.get("subjects") or ()) for stream, config in configs.items()}
    if len(held) == 1 and holds(held[found[0]], subject):
        return found[0], found[0].startswith(subjects.capture_stream(""))
    parts = "; ".join(f"{stream!r} holds {', '.join(held[stream])}" for stream in sorted(held))
    raise UserError(
        f"subject {shown(subject)} cannot start runs: no one stream holds all of it, and a part of "
        f"it is held already, so it cannot be captured either ({parts}). Create a trigger for "
        "each of these subjects, or let one stream hold all of them."
    )


async def _capture(js: JetStream, subjects: Subjects, subject: str) -> dict[str, Any]:
    events = await _call(js, f"STREAM.INFO.{subjects.events_stream}", None)
    return {
        "name": subjects.capture_stream(digest(subject)),
        "subjects": [subject],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "max_age": CAPTURED_MAX_AGE_S * _SECOND_NS,
        "num_replicas": events["config"]["num_replicas"],
        "allow_direct": True,
    }


async def _delete_stream(js: JetStream, stream: str) -> None:
    try:
        await _call(js, f"STREAM.DELETE.{stream}", None)
    except ApiError as exc:
        if exc.err_code != STREAM_NOT_FOUND:
            raise


async def _call(js: JetStream, tail: str, body: object | None) -> dict[str, Any]:
    backoff = Backoff(f"{tail.partition('.')[0].lower()} of a trigger", BUDGET_S, verb="reached")
    while True:
        try:
            return await js.api(tail, body)
        except (Unknown, ApiError) as exc:
            if isinstance(exc, ApiError) and not exc.transient:
                raise
            await backoff.wait(exc)
