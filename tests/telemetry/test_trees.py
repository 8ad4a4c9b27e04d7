"""What a run looks like in a backend: one tree, whatever happened. Method: a real server, and a
collector that takes OTLP over HTTP from the engine's own exporter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from tests.telemetry import scenarios
from tests.telemetry.scenarios import CANARY, a_worker, report, stood
from tests.telemetry.stand import Stand, exporting, stand

from treadle.sdk import Workflow
from treadle.sdk.settings import Settings
from treadle.worker import SyncTaskContext, TaskContext, Worker

Story = Callable[[Stand], Coroutine[Any, Any, None]]
Play = Callable[..., None]


def looking_worker() -> Worker:
    """Return the scenarios' worker, with tasks besides that say which span is theirs."""
    worker = a_worker()

    @worker.handler("look")
    async def look(ctx: TaskContext[Any]) -> tuple[str, str]:
        return here()

    @worker.handler("look-in-a-thread")
    def look_in_a_thread(ctx: SyncTaskContext[Any]) -> tuple[str, str]:
        return here()

    return worker


def here() -> tuple[str, str]:
    """Return trace and span id of the current span."""
    context = trace.get_current_span().get_span_context()
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


@pytest.fixture
def play(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a story on a stand."""

    def play(story: Story, **options: Any) -> None:
        async def on_stand(taken: Any, export: Any) -> None:
            async with stand(settings, looking_worker(), taken, export, **options) as place:
                await story(place)

        with exporting(monkeypatch) as (taken, export):
            asyncio.run(on_stand(taken, export))

    return play


def iterations(*names: str) -> dict[str, Any]:
    return {name: {"queue wait": {}} if "iteration" in name else {} for name in names}


def test_a_run_is_one_tree_with_each_execution_and_what_it_waited_for(play: Play) -> None:
    async def story(place: Stand) -> None:
        await scenarios.retried(place.client)
        await place.traced("run")
        assert place.collector.tree("run") == {
            "invoke_workflow report": {
                "step fetch": {"attempt 1": {"queue wait": {}}},
                "run started": {},
                "invoke_agent think": iterations(
                    "iteration 0",
                    "iteration 1",
                    "wait retry",
                    "iteration 1 (attempt 2)",
                    "iteration 2",
                ),
            }
        }
        spans = {span.name: span for span in place.collector.of_run("run")}
        failed = spans["iteration 1"]
        assert failed.is_error and failed.attributes["error.type"] == "RuntimeError"
        assert failed.attributes["treadle.remaining.iterations"] == 498
        assert failed.attributes["messaging.destination.name"] == "think"
        again = spans["iteration 1 (attempt 2)"]
        # The delay is the wait between the two, and no part of the queue wait.
        assert again.start_ns - failed.end_ns >= 90_000_000
        assert spans["wait retry"].attributes["treadle.wait.reason"] == "retry"
        assert not spans["invoke_agent think"].is_error
        assert spans["invoke_agent think"].attributes["gen_ai.agent.turn.count"] == 3
        whole = b"".join(place.collector.bodies)
        assert CANARY.encode() not in whole and b"no luck" not in whole

    play(story)


def test_what_a_handler_traces_is_below_its_execution(play: Play) -> None:
    async def story(place: Stand) -> None:
        workflow = Workflow("look")
        workflow.task("one", "look")
        workflow.task("two", "look-in-a-thread")
        run = await place.client.start(workflow, id="run")
        found = await run.result()
        await place.traced("run")
        attempts = [s for s in place.collector.of_run("run") if s.name == "attempt 1"]
        assert {(s.trace_id, s.span_id) for s in attempts} == {tuple(s) for s in found.values()}

    play(story)


@pytest.mark.slow
def test_a_long_loop_is_in_linked_traces_of_two_hundred_iterations_each(play: Play) -> None:
    async def story(place: Stand) -> None:
        await scenarios.long_loop(place.client)
        await place.traced("run")
        tree = place.collector.tree("run")["invoke_workflow report"]
        assert len(tree["invoke_agent think"]) == 200
        spans = place.collector.of_run("run")
        rest = next(span for span in spans if "iterations 200 to 299" in span.name)
        below = [s for s in spans if (s.trace_id, s.parent_id) == (rest.trace_id, rest.span_id)]
        assert [s.name for s in below] == [f"iteration {n}" for n in range(200, 300)]
        step = next(span for span in spans if span.name == "invoke_agent think")
        root = next(span for span in spans if span.name == "invoke_workflow report")
        assert rest.trace_id != root.trace_id
        assert step.links == ((rest.trace_id, rest.span_id, "next"),)
        assert rest.links == (
            (step.trace_id, step.span_id, "previous"),
            (root.trace_id, root.span_id, "run"),
        )

    play(story)


def test_a_run_that_was_parked_and_resumed_shows_how_long_it_stood(play: Play) -> None:
    async def story(place: Stand) -> None:
        await scenarios.parked_and_resumed(place.client)
        await place.traced("run")
        tree = place.collector.tree("run")["invoke_workflow report"]["invoke_agent think"]
        assert list(tree) == ["iteration 0", "iteration 1", "wait parked", "iteration 2"]
        last = next(s for s in place.collector.of_run("run") if s.name == "iteration 2")
        assert last.attributes["treadle.remaining.iterations"] == 2

    play(story)


def test_a_wait_for_a_person_is_a_span_with_its_reason(play: Play) -> None:
    async def story(place: Stand) -> None:
        run = await place.client.start(report(), {"last": 2, "waits_at": 1}, id="run")
        await stood(run)
        await run.send("think", "go on")
        await run.result()
        await place.traced("run")
        wait = next(span for span in place.collector.of_run("run") if span.name == "wait")
        assert wait.attributes["treadle.wait.reason"] == "a person"

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("hangs_at", [1, 200])
def test_a_cancelled_run_has_no_orphans_and_says_that_it_was_cancelled(
    play: Play, hangs_at: int
) -> None:
    async def story(place: Stand) -> None:
        run = await place.client.start(report(), {"last": 201, "hangs_at": hangs_at}, id="run")
        async with asyncio.timeout(20):
            while f"iteration {hangs_at - 1}" not in {s.name for s in place.collector.spans}:
                await asyncio.sleep(0.02)
        await run.cancel()
        await place.traced("run")
        tree = place.collector.tree("run")["invoke_workflow report"]["invoke_agent think"]
        assert list(tree) == [f"iteration {n}" for n in range(min(hangs_at + 1, 200))]
        spans = {span.name: span for span in place.collector.of_run("run")}
        assert spans[f"iteration {hangs_at}"].attributes["error.type"] == "cancelled"
        assert spans["invoke_agent think"].attributes["treadle.step.status"] == "cancelled"
        assert spans["invoke_workflow report"].attributes["treadle.run.status"] == "cancelled"

    play(story)


def test_live_traces_show_root_and_steps_as_they_begin(play: Play) -> None:
    async def story(place: Stand) -> None:
        run = await place.client.start(report(), {"last": 1, "waits_at": 1}, id="run")
        async with asyncio.timeout(20):
            expected = {"invoke_agent think", "iteration 1", "step fetch"}
            while not expected <= {span.name for span in place.collector.of_run("run")}:
                await asyncio.sleep(0.02)
        begun = place.collector.tree("run")["invoke_workflow report"]
        assert set(begun) == {"step fetch", "invoke_agent think"}
        await run.send("think", "go on")
        await run.result()
        async with asyncio.timeout(20):
            while "run completed" not in {s.name for s in place.collector.of_run("run")}:
                await asyncio.sleep(0.02)
        tree = place.collector.tree("run")["invoke_workflow report"]
        assert set(tree) == {"step fetch", "invoke_agent think", "run completed"}
        assert "think completed" in tree["invoke_agent think"]

    play(story, live=True)


@pytest.mark.parametrize("mode", ["link", "join"])
def test_a_run_links_to_its_caller_or_joins_its_trace(play: Play, mode: Any) -> None:
    async def story(place: Stand) -> None:
        caller = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
        with trace.use_span(NonRecordingSpan(caller)):
            run = await place.client.start(report(), {"last": 0}, id="run", trace=mode)
        await run.result()
        await place.traced("run")
        root = next(s for s in place.collector.of_run("run") if s.name.startswith("invoke_w"))
        here = (f"{0xABC:032x}", f"{0xDEF:016x}")
        if mode == "link":
            assert root.links == ((*here, "caller"),) and not root.parent_id
            assert root.trace_id != here[0]
        else:
            assert (root.trace_id, root.parent_id, root.links) == (*here, ())

    play(story)


def test_without_a_collector_runs_go_on_and_their_spans_come_when_it_is_back(play: Play) -> None:
    async def story(place: Stand) -> None:
        place.collector.is_refusing = True
        run = await place.client.start(report(), {"last": 3}, id="run")
        await run.result()
        assert not place.collector.spans
        place.collector.is_refusing = False
        await place.traced("run")
        assert len(place.collector.tree("run")["invoke_workflow report"]["invoke_agent think"]) == 4

    play(story)


def test_a_run_that_is_not_sampled_exports_nothing(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")

    async def story(place: Stand) -> None:
        off = await place.client.start(report(), {"last": 1}, id="off")
        await off.result()
        monkeypatch.delenv("OTEL_TRACES_SAMPLER")
        on = await place.client.start(report(), {"last": 1}, id="on")
        await on.result()
        await place.traced("on")
        assert place.collector.of_run("off") == []

    play(story)
