"""Traces as real backends show them, whatever died in between.

Method: the scenarios of `tests/telemetry`, exported to the backend itself; what its interface gives
back is compared, span by span, with the trace that the client reads from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agent.durable.stand import Stand, stand
from tests.agent.durable.test_kill import play
from tests.backends.backend import Backend, Shown
from tests.backends.checking import shown
from tests.telemetry import scenarios
from tests.telemetry.researcher import TURNS, playing
from tests.telemetry.stand import working

from treadle.engine.telemetry.exporting import OtlpExport
from treadle.sdk import Client, RunHandle
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing.script import Responder

pytestmark = pytest.mark.timeout(600)


@asynccontextmanager
async def agents_on(
    settings: Settings, directory: Path, responder: Responder, *, content: bool = False
) -> AsyncGenerator[Stand]:
    """A stand for agents whose engine exports to the backend."""
    export = OtlpExport()
    try:
        async with stand(settings, directory, responder, export.send, content=content) as place:
            yield place
    finally:
        export.close()


def named(spans: list[Shown], *prefixes: str) -> list[str]:
    return sorted(span.name for span in spans if span.name.startswith(prefixes))


@pytest.mark.parametrize(
    ("play_it", "expected"),
    [
        (scenarios.retried, {"iteration 1", "wait retry", "iteration 1 (attempt 2)"}),
        (scenarios.parked_and_resumed, {"iteration 1", "wait parked", "iteration 2"}),
        (scenarios.long_loop, {f"iteration {n}" for n in range(scenarios.LONG)}),
    ],
    ids=["a retry", "parked and resumed", "300 iterations"],
)
def test_a_loop_is_one_tree_in_a_backend(
    backend: Backend,
    settings: Settings,
    play_it: Callable[[Client], Awaitable[RunHandle]],
    expected: set[str],
) -> None:
    async def story() -> None:
        export = OtlpExport()
        try:
            async with working(settings, scenarios.a_worker(), export.send) as client:
                run = await play_it(client)
                spans = await shown(backend, client, run)
        finally:
            export.close()
        assert expected <= {span.name for span in spans}
        traces = 1 + (play_it is scenarios.long_loop)
        assert len({span.trace_id for span in spans}) == traces

    asyncio.run(story())


@pytest.mark.parametrize("dies_in", [None, 2], ids=["five turns with tools", "a worker killed"])
def test_an_agent_is_one_tree_in_a_backend_with_each_call_once(
    backend: Backend, settings: Settings, tmp_path: Path, dies_in: int | None
) -> None:
    async def story() -> None:
        async with agents_on(settings, tmp_path, playing()) as place:
            run = await scenarios.researched(place, dies_in)
            spans = await shown(backend, place.client, run)
        assert len(named(spans, "chat ")) == TURNS
        assert len(named(spans, "execute_tool ")) == 2 * (TURNS - 1)
        assert named(spans, "step ") == ["step fetch", "step report"]
        lost = [span for span in spans if "worker lost" in span.name]
        if dies_in is None:
            assert not lost
        else:
            assert [span.name for span in lost] == [f"iteration {dies_in} (worker lost)"]
            assert lost[0].is_error
            below = [span.name for span in spans if span.parent_id == lost[0].span_id]
            assert "chat claude-test" in below, "what it had stored is below it"

    asyncio.run(story())


def test_what_was_said_is_where_a_backend_looks_for_it(
    backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with agents_on(settings, tmp_path, playing(), content=True) as place:
            run = await scenarios.researched(place)
            spans = await shown(backend, place.client, run)
        root = next(span for span in spans if not span.parent_id)
        assert root.content == ('"looms"', '"LOOMS WOVE PATTERNS FROM PUNCHED CARDS."')
        for n in range(TURNS - 1):
            arguments, result = f'"looms {n}"', f"about looms {n}"
            (search,) = (
                span
                for span in spans
                if span.name == "execute_tool search_docs" and arguments in span.content[0]
            )
            assert result in search.content[1]
            # The call is in an answer of the model, and both results in what it is told next.
            chats = [span.content for span in spans if span.name.startswith("chat ")]
            assert sum(f"looms {n}" in said for _, said in chats) == 1
            assert [f"page {n}" in told for told, _ in chats if result in told] == [True]

    asyncio.run(story())


def test_a_zombie_adds_nothing_to_a_backend(
    backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with agents_on(settings, tmp_path, play) as place:
            stopped = await scenarios.zombie(place)
            before = await shown(backend, place.client, stopped.run)
            later = await stopped.wakes()
            await shown(backend, place.client, later)
            after = await shown(backend, place.client, stopped.run)
        assert set(after) == set(before)

    asyncio.run(story())


def test_sub_agents_are_in_the_tree_of_a_backend_and_their_tokens_in_its_sum(
    backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with agents_on(settings, tmp_path, scenarios.sub_agents_play) as place:
            run = await scenarios.sub_agents(place)
            spans = await shown(backend, place.client, run)
        clerks = [span for span in spans if span.name == "invoke_agent clerk"]
        assert [span.kind for span in clerks] == ["AGENT", "AGENT"]

    asyncio.run(story())


def test_a_killed_engine_leaves_one_tree_in_a_backend(
    backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with (
            stand(settings, tmp_path, play, serve=False) as place,
            scenarios.killed_engine(place, tmp_path) as run,
        ):
            await shown(backend, place.client, run)

    asyncio.run(story())
