"""The compare-and-set table: what each answer of the server, and no answer, leads to.

Method: a real stream; lost answers and in-flight conflicts are put in front of it by a subclass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from treadle.sdk.bus.acks import WriteAck
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.jetstream import ApiError, CasResult, JetStream, Refused
from treadle.sdk.errors import ServerUnavailable
from treadle.sdk.settings import Settings

Body = Callable[["FaultyJetStream"], Coroutine[Any, Any, None]]


class FaultyJetStream(JetStream):
    """Loses answers and invents conflicts, as often as it is told to."""

    answers_lost = 0
    requests_lost = 0
    conflicts = 0
    tries = 0

    async def _try(
        self,
        subject: str,
        data: bytes,
        expected: int | None,
        filter: str,
        message_id: str,
        headers: Mapping[str, str] | None,
    ) -> WriteAck | Refused:
        self.tries += 1
        if self.conflicts > 0:
            self.conflicts -= 1
            return Refused(10164)
        if self.requests_lost > 0:
            self.requests_lost -= 1
            raise Unknown("lost on the way there")
        ack = await super()._try(subject, data, expected, filter, message_id, headers)
        if self.answers_lost > 0:
            self.answers_lost -= 1
            raise Unknown("lost on the way back")
        return ack


@pytest.fixture(params=[True, False], ids=["ids-on", "ids-off"])
def with_stream(
    request: pytest.FixtureRequest, settings: Settings, namespace: str
) -> Callable[[Body], None]:
    """Run a test body with a JetStream that has a bucket-like stream R, subjects r.>."""

    def run(body: Body) -> None:
        async def main() -> None:
            async with await Connection.open(settings, name="test") as connection:
                js = FaultyJetStream(connection, message_ids=request.param)
                js.ns = namespace  # type: ignore[attr-defined]
                await js.ensure_stream(
                    {
                        "name": namespace,
                        "subjects": [f"{namespace}.>"],
                        "max_msgs_per_subject": 1,
                        "allow_direct": True,
                        "discard": "new",
                    }
                )
                await body(js)
                await js.api(f"STREAM.DELETE.{namespace}")

        asyncio.run(main())

    return run


def cas(
    js: FaultyJetStream, data: bytes, expected: int, *, filter: str = "", budget_s: float = 15
) -> Awaitable[CasResult]:
    ns: str = js.ns  # type: ignore[attr-defined]
    return js.compare_and_set(
        ns,
        f"{ns}.a.t",
        data,
        expected=expected,
        filter=filter and f"{ns}.{filter}",
        message_id=f"id-{data.decode()}",
        is_mine=lambda stored: stored == data,
        budget_s=budget_s,
    )


def subject(js: FaultyJetStream, tail: str = "a.t") -> str:
    return f"{js.ns}.{tail}"  # type: ignore[attr-defined]


def test_a_write_with_the_right_expectation_stands(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        first = await cas(js, b"one", 0)
        assert first.stored is not None
        second = await cas(js, b"two", first.stored.sequence)
        assert second.stored is not None
        assert (second.stored.data, second.head) == (b"two", None)
        assert second.stored.subject == subject(js)

    with_stream(body)


def test_a_write_with_an_old_expectation_gets_the_head(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        head = await js.store(subject(js), b"other")
        result = await cas(js, b"mine", 0)
        assert result.stored is None
        assert result.head is not None
        assert (result.head.data, result.head.sequence, result.newest) == (b"other", head, head)
        assert result.head.time_ms > 0

    with_stream(body)


def test_a_write_that_expects_something_of_an_empty_subject_gets_no_head(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        assert await cas(js, b"mine", 7) == CasResult(None, None, 0)

    with_stream(body)


def test_a_lost_answer_is_read_back_as_mine(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        js.answers_lost = 1
        result = await cas(js, b"mine", 0)
        assert result.stored is not None
        assert (result.stored.data, result.stored.sequence) == (b"mine", 1)
        assert result.stored.time_ms > 0, "read back, so its time is known"
        assert js.tries == 1
        state = (await js.api(f"STREAM.INFO.{js.ns}"))["state"]  # type: ignore[attr-defined]
        assert state["last_seq"] == 1

    with_stream(body)


def test_a_lost_request_is_sent_again(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        js.requests_lost = 2
        result = await cas(js, b"mine", 0)
        assert result.stored is not None
        assert (result.stored.sequence, js.tries) == (1, 3)

    with_stream(body)


def test_a_lost_answer_of_a_refused_write_gets_the_head(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        await js.store(subject(js), b"other")
        js.answers_lost = 1
        result = await cas(js, b"mine", 0)
        assert result.stored is None
        assert result.head is not None
        assert result.head.data == b"other"

    with_stream(body)


def test_an_equivalent_write_of_another_process_counts_and_is_what_is_returned(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        await js.store(subject(js), b"parent=E7 by=another version")
        ns: str = js.ns  # type: ignore[attr-defined]
        result = await js.compare_and_set(
            ns,
            subject(js),
            b"parent=E7 by=me",
            expected=0,
            is_mine=lambda data: data.startswith(b"parent=E7"),
        )
        assert result.stored is not None
        assert result.stored.data == b"parent=E7 by=another version"

    with_stream(body)


def test_conflicts_in_flight_are_tried_again(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        js.conflicts = 3
        result = await cas(js, b"mine", 0)
        assert result.stored is not None
        assert js.tries == 4

    with_stream(body)


def test_endless_conflicts_and_silence_end_with_the_budget(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        js.conflicts = 10**9
        with pytest.raises(ServerUnavailable, match="in flight"):
            await cas(js, b"mine", 0, budget_s=0.1)
        js.conflicts, js.requests_lost = 0, 10**9
        with pytest.raises(ServerUnavailable, match="lost on the way there"):
            await cas(js, b"mine", 0, budget_s=0.1)

    with_stream(body)


def test_a_filter_fences_all_subjects_under_it(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        one = await cas(js, b"one", 0, filter="a.>")
        assert one.stored is not None
        checkpoint = await js.attempt(
            subject(js, "a.c"), b"ck", expected=one.stored.sequence, filter=subject(js, "a.>")
        )
        assert isinstance(checkpoint, int)
        # The subject has not moved, the filter has.
        refused = await cas(js, b"two", one.stored.sequence, filter="a.>")
        assert refused.stored is None
        assert refused.head is not None
        assert (refused.head.data, refused.newest) == (b"one", checkpoint)
        accepted = await cas(js, b"two", checkpoint, filter="a.>")
        assert accepted.stored is not None

    with_stream(body)


def test_an_attempt_is_one_try(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        assert await js.attempt(subject(js), b"1", expected=0) == 1
        assert await js.attempt(subject(js), b"2", expected=0) == Refused(10071)
        assert not Refused(10071).transient
        assert Refused(10164).transient
        js.answers_lost = 1
        with pytest.raises(Unknown):
            await js.attempt(subject(js), b"2", expected=1)
        assert js.tries == 3
        with pytest.raises(Unknown, match="nobody answers"):
            await js.attempt("no.stream.here", b"")

    with_stream(body)


def test_of_many_racing_writers_exactly_one_wins(with_stream: Callable[[Body], None]) -> None:
    async def body(js: FaultyJetStream) -> None:
        for expected in range(20):
            writes = (cas(js, b"%d-%d" % (expected, n), expected) for n in range(8))
            results = await asyncio.gather(*writes)
            winners = [each.stored for each in results if each.stored is not None]
            assert len(winners) == 1
            assert {each.head for each in results if each.head}.issubset(
                {await js.last(js.ns, subject(js))}  # type: ignore[attr-defined]
            )

    with_stream(body)


def test_a_message_id_that_was_spent_swallows_no_legitimate_write(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        ns: str = js.ns  # type: ignore[attr-defined]
        first = await js.store(subject(js), b"first", message_id="same")
        result = await js.compare_and_set(
            ns,
            subject(js),
            b"second",
            expected=first,
            message_id="same",
            is_mine=lambda data: data == b"second",
        )
        assert result.stored is not None
        head = await js.last(ns, subject(js))
        assert head is not None
        assert (head.data, head.sequence) == (b"second", result.stored.sequence)

    with_stream(body)


def test_message_ids_are_sent_only_if_wanted(settings: Settings, namespace: str) -> None:
    async def main() -> None:
        async with await Connection.open(settings, name="test") as connection:
            on, off = JetStream(connection), JetStream(connection, message_ids=False)
            await on.ensure_stream({"name": namespace, "subjects": [f"{namespace}.>"]})
            sequences = [
                await js.store(f"{namespace}.a", b"", message_id="same") for js in (on, on, off)
            ]
            assert sequences == [1, 1, 2]

    asyncio.run(main())


def test_an_error_that_cannot_go_away_is_raised_at_once(
    with_stream: Callable[[Body], None],
) -> None:
    async def body(js: FaultyJetStream) -> None:
        # Rollups are not allowed on this stream.
        rollup = {"Nats-Rollup": "all"}
        with pytest.raises(ApiError) as caught:
            await js.attempt(subject(js), b"", headers=rollup)
        assert not caught.value.transient
        with pytest.raises(ServerUnavailable, match="rollup"):
            await js.store(subject(js), b"", headers=rollup)

    with_stream(body)
