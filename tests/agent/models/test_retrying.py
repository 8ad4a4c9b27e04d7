"""A model is called again when that is safe and useful, and never otherwise.

Method: a scripted model, recorded sleeps; two tests count the requests at a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.models.wire import Deltas, ask

from treadle.worker.agent.core.conversation import (
    TRANSIENT,
    ErrorKind,
    ModelError,
    ModelFault,
    ModelRequest,
    ModelResponse,
    Usage,
)
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.port import OnDelta, TextDelta
from treadle.worker.agent.models.retrying import (
    Called,
    ModelBusy,
    Retry,
    RetryPolicy,
    backoff_s,
    call,
)
from treadle.worker.agent.testing import FakeAnthropic, cut_after, error, hang_up, text, turn

ANSWER = ModelResponse(content=[], stop_reason="end_turn", usage=Usage(output_tokens=7))
ONE = Usage(input_tokens=10, output_tokens=1)


class Scripted:
    """A model that fails as it is told, then answers."""

    provider, name, context_window, max_output_tokens = "test", "m", 1000, 100

    def __init__(self, *faults: ModelFault) -> None:
        self.faults = list(faults)
        self.calls = 0
        self.keys: list[str] = []

    async def respond(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> ModelResponse:
        self.calls += 1
        self.keys.append(api_key)
        if self.faults:
            raise ModelError(self.faults.pop(0))
        if on_delta is not None:
            on_delta(TextDelta(0, "x"))
        return ANSWER

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def close(self) -> None:
        pass


def fault(kind: ErrorKind = "overloaded", **fields: float) -> ModelFault:
    """Return a fault that used something."""
    return ModelFault(kind=kind, message="no", usage=ONE, **fields)  # type: ignore[arg-type]


class Story:
    """One call with all that can be watched of it."""

    def __init__(self, *faults: ModelFault) -> None:
        self.model = Scripted(*faults)
        self.sleeps: list[float] = []
        self.retries: list[Retry] = []

    def run(
        self,
        policy: RetryPolicy | None = None,
        chance: float = 0.0,
        on_superseded: Callable[[], None] | None = None,
    ) -> Called:
        """Make the call."""

        async def sleep(delay_s: float) -> None:
            self.sleeps.append(delay_s)

        made = call(
            self.model,
            ask(),
            policy,
            on_retry=self.retries.append,
            on_superseded=on_superseded,
            sleep=sleep,
            random=lambda: chance,
        )
        return asyncio.run(made)


def test_an_answer_at_once_takes_one_try_and_wastes_nothing() -> None:
    story = Story()
    assert story.run() == Called(response=ANSWER, tries=1, wasted=Usage())
    assert story.sleeps == []


@pytest.mark.parametrize("kind", sorted(TRANSIENT))
def test_transient_faults_are_retried_with_doubled_delays(kind: ErrorKind) -> None:
    story = Story(*[fault(kind)] * 5)
    called = story.run()
    assert (called.tries, story.model.calls) == (6, 6)
    assert called.wasted == Usage(input_tokens=50, output_tokens=5)
    assert story.sleeps == [1, 2, 4, 8, 16]
    assert [(r.number, r.delay_s) for r in story.retries] == list(enumerate(story.sleeps, 1))
    assert story.retries[0].fault == fault(kind)


def test_the_last_fault_is_raised_with_the_usage_of_all_tries() -> None:
    story = Story(*[fault()] * 5, fault("timeout"), fault())
    with pytest.raises(ModelError) as failed:
        story.run()
    assert story.model.calls == 6
    assert failed.value.fault.kind == "timeout"
    assert failed.value.fault.usage == Usage(input_tokens=60, output_tokens=6)


@pytest.mark.parametrize("kind", ["context_exceeded", "auth", "invalid_request", "other"])
def test_permanent_faults_are_not_retried(kind: ErrorKind) -> None:
    story = Story(fault(kind, retry_after_s=600))
    with pytest.raises(ModelError, match=kind):
        story.run()
    assert (story.model.calls, story.sleeps) == (1, [])


def test_an_answer_that_cannot_be_read_is_asked_for_once_more() -> None:
    assert Story(fault("malformed")).run().tries == 2
    story = Story(fault("malformed"), fault("overloaded"), fault("malformed"))
    with pytest.raises(ModelError, match="malformed"):
        story.run()
    assert story.model.calls == 3


@pytest.mark.parametrize("kind", ["overloaded", "malformed", "rate_limited"])
def test_a_call_whose_deltas_were_given_out_is_never_repeated(kind: ErrorKind) -> None:
    story = Story(fault(kind, is_committed=True, retry_after_s=600))
    with pytest.raises(ModelError) as failed:
        story.run()
    assert story.model.calls == 1
    assert failed.value.fault.is_committed


def test_a_caller_that_can_supersede_what_was_shown_gets_two_more_answers_at_most() -> None:
    told: list[str] = []
    story = Story(*(fault(is_committed=True) for _ in range(2)))
    assert story.run(on_superseded=lambda: told.append("superseded")).tries == 3
    assert told == ["superseded"] * 2
    story = Story(*(fault(is_committed=True) for _ in range(3)))
    with pytest.raises(ModelError):
        story.run(on_superseded=lambda: told.append("superseded"))
    assert story.model.calls == 3
    story = Story(fault("malformed", is_committed=True))
    with pytest.raises(ModelError):
        story.run(on_superseded=lambda: told.append("superseded"))
    assert story.model.calls == 1


def test_the_wait_is_never_shorter_than_the_server_asks() -> None:
    story = Story(fault("rate_limited", retry_after_s=17), fault(retry_after_s=0.5))
    story.run()
    assert story.sleeps == [17, 2]


def test_a_wait_too_long_for_a_worker_is_handed_to_the_caller() -> None:
    story = Story(fault(), fault("rate_limited", retry_after_s=171))
    with pytest.raises(ModelBusy, match="171 s") as busy:
        story.run()
    assert story.sleeps == [1]
    assert (busy.value.retry_after_s, busy.value.tries) == (171, 2)
    assert busy.value.fault.usage == Usage(input_tokens=20, output_tokens=2)


def test_the_bound_on_waits_in_the_worker_can_be_set() -> None:
    story = Story(fault(retry_after_s=171))
    assert story.run(RetryPolicy(park_after_s=200)).tries == 2
    assert story.sleeps == [171]


def test_no_retries_means_one_call() -> None:
    story = Story(fault())
    with pytest.raises(ModelError):
        story.run(RetryPolicy(retries=0))
    assert story.model.calls == 1


@given(
    retry=st.integers(1, 2000),
    retry_after_s=st.floats(0, 60),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_stays_within_its_bounds(retry: int, retry_after_s: float, chance: float) -> None:
    policy = RetryPolicy()
    delay_s = backoff_s(policy, retry, retry_after_s, chance)
    assert retry_after_s <= delay_s <= max(retry_after_s, 60 * 1.25)
    assert delay_s >= min(2.0 ** min(retry - 1, 10), 60)


def test_jitter_adds_up_to_a_quarter() -> None:
    assert backoff_s(RetryPolicy(), 3, 0, 1.0) == 5


def test_what_the_call_is_given_reaches_the_model() -> None:
    async def story() -> None:
        model, deltas = Scripted(), Deltas()
        await call(model, ask(), on_delta=deltas, api_key="k")
        assert model.keys == ["k"]
        assert deltas == [TextDelta(0, "x")]

    asyncio.run(story())


def test_cancelling_during_a_wait_ends_the_call() -> None:
    async def story() -> None:
        asleep = asyncio.Event()

        async def sleep(_: float) -> None:
            asleep.set()
            await asyncio.Event().wait()

        model = Scripted(fault(), fault())
        going = asyncio.create_task(call(model, ask(), sleep=sleep))
        await asyncio.wait_for(asleep.wait(), 2)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        assert model.calls == 1

    asyncio.run(story())


def requests_for(fake: FakeAnthropic, on_delta: OnDelta | None = None) -> Callable[[], Called]:
    """Return a call of a real adapter with real waits of no length."""

    async def story() -> Called:
        model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
        try:
            return await call(
                model, ask(), RetryPolicy(first_delay_s=0), on_delta=on_delta, random=lambda: 0
            )
        finally:
            await model.close()

    return lambda: asyncio.run(story())


def test_the_server_sees_exactly_one_request_a_try_and_not_before_its_time() -> None:
    script = [error(529), error(429, retry_after=0.3), hang_up(), turn(text("ok"))]
    with FakeAnthropic(script) as fake:
        called = requests_for(fake)()
        assert (called.tries, fake.count) == (4, 4)
        times_s = [request.received_at for request in fake.requests]
    assert times_s[2] - times_s[1] >= 0.3


def test_a_stream_cut_before_its_first_delta_is_repeated_and_one_cut_after_it_is_not() -> None:
    deltas = Deltas()
    script = [
        turn(text("hello there"), fault=cut_after("message_start")),
        turn(text("hello there"), fault=cut_after("content_block_delta")),
    ]
    with FakeAnthropic(script) as fake:
        with pytest.raises(ModelError, match="network") as failed:
            requests_for(fake, deltas)()
        assert fake.count == 2
    assert failed.value.fault.is_committed
    assert failed.value.fault.usage.is_estimated
    assert failed.value.fault.usage.input_tokens > 0
    assert len(deltas) == 1


def test_a_refusal_is_an_answer_and_is_not_asked_for_again_even_when_it_is_empty() -> None:
    with FakeAnthropic([turn(stop_reason="refusal")]) as fake:
        called = requests_for(fake)()
        assert (called.tries, fake.count) == (1, 1)
    assert (called.response.stop_reason, called.response.content) == ("refusal", [])
