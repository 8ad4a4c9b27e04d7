"""A budget that a run shares with its children: who stops, who is told, and what a raise does.
Method: real workflows on a real server, and two engines where they may see different things."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.documents import Documents
from treadle.sdk import RunConflict, RunFailed, Spent, Workflow
from treadle.sdk.run import RunDocument, child_of
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.verdict import Complete, Continue

EACH = 2
"""Tool calls of one iteration."""


def worker(*, ends_at: int = 0, left: list[object] | None = None) -> Worker:
    """Return a worker whose loops go on for ever, or until an iteration."""
    made = Worker(concurrency=8)

    @made.handler("spend")
    async def spend(ctx: LoopContext[Any]) -> Continue | Complete:
        if left is not None:
            left.append(ctx.remaining.tool_calls)
        if ctx.wrap_up:
            return ctx.complete(ctx.wrap_up)
        ctx.report_spent(Spent(tool_calls=EACH))
        return ctx.complete(ctx.iteration) if ends_at == ctx.iteration + 1 else ctx.continue_()

    @made.handler("pass")
    async def pass_(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    return made


def loops(workflow: Workflow[Any], *names: str, **options: Any) -> Workflow[Any]:
    for name in names:
        workflow.agent_loop(name, "spend", max_iterations=1_000, **options)
    return workflow


def child(name: str = "child", on_limit: Any = "park", **bounds: Any) -> Workflow[Any]:
    return loops(Workflow(name, **bounds), "think", on_limit=on_limit)


async def serving(stand: Stand, *workflows: Workflow[Any], by: Worker | None = None) -> None:
    await stand.engine()
    stand.worker(by or worker())
    for workflow in workflows:
        await stand.client.register(workflow)


async def until_parked(stand: Stand, run: str, *steps: str) -> RunDocument:
    def is_it(document: RunDocument | None) -> bool:
        return document is not None and all(
            name in document.steps and document.steps[name].status == "parked" for name in steps
        )

    found = await stand.until(f"{run} parks", lambda: stand.document(run), is_it)
    assert found is not None
    return found


def used(*runs: RunDocument) -> int:
    return sum(entry.spent.tool_calls for run in runs for entry in run.steps.values())


async def below(stand: Stand, step: str, run: str = "r") -> str:
    def is_it(document: RunDocument | None) -> bool:
        return document is not None and step in document.steps

    found = await stand.until(f"{step} begins", lambda: stand.document(run), is_it)
    assert found is not None
    return child_of(found, step)


def test_a_parent_and_its_children_use_no_more_than_the_budget_and_what_is_under_way(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        top = loops(Workflow("top", max_tool_calls=40), "own", on_limit="park")
        top.sub_workflow("left", "child")
        top.sub_workflow("right", "middle")
        middle = Workflow("middle")
        middle.sub_workflow("deep", "child")
        await serving(stand, child(), middle)
        await stand.engine()
        await stand.client.start(top, id="r")
        right = await below(stand, "right")
        left, deep = await below(stand, "left"), await below(stand, "deep", right)
        ended = [
            await until_parked(stand, run, step)
            for run, step in (("r", "own"), (left, "think"), (deep, "think"))
        ]
        for document in ended:
            for entry in document.steps.values():
                assert entry.failure is None or entry.failure.type == "run_budget"
        assert 40 <= used(*ended) <= 40 - 1 + 2 * EACH * 3

    play(story)


def test_what_a_child_has_used_is_counted_after_it_has_ended(play: Play) -> None:
    async def story(stand: Stand) -> None:
        top = Workflow("top", max_tool_calls=5 * EACH)
        begun = top.sub_workflow("sub", "child")
        top.agent_loop("own", "spend", max_iterations=1_000, after=begun)
        await serving(stand, child(), by=worker(ends_at=2))
        await stand.client.start(top, id="r")
        assert await stand.client.result("r", timeout_s=15) == 1
        ended = await stand.ended("r")
        assert [entry.spent.tool_calls for entry in ended.steps.values()] == [2 * EACH, 2 * EACH]
        again = Workflow("again", max_tool_calls=2 * EACH)
        begun = again.sub_workflow("sub", "child")
        again.agent_loop("own", "spend", max_iterations=1_000, after=begun)
        await stand.client.start(again, id="s")
        with pytest.raises(RunFailed, match="4 of 4 tool calls") as caught:
            await stand.client.result("s", timeout_s=15)
        assert (caught.value.step, caught.value.failure.type) == ("own", "run_budget")
        assert "after 0 iterations" in caught.value.failure.message
        assert "Raise the budget of workflow 'again'" in str(caught.value)

    play(story)


def test_a_detached_child_has_no_part_in_the_budget(play: Play) -> None:
    async def story(stand: Stand) -> None:
        top = Workflow("top", max_tool_calls=2 * EACH)
        begun = top.sub_workflow("alone", "child", detached=True)
        top.agent_loop("own", "spend", max_iterations=1_000, after=begun, on_limit="park")
        await serving(stand, loops(Workflow("child"), "think", max_tool_calls=10 * EACH))
        await stand.client.start(top, id="r")
        alone = await stand.ended(await below(stand, "alone"))
        assert alone.steps["think"].spent.tool_calls == 10 * EACH
        assert used(await until_parked(stand, "r", "own")) == 2 * EACH

    play(story)


def test_a_loop_that_wraps_up_is_told_why_and_a_handler_sees_what_is_left(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen: list[object] = []
        top = loops(Workflow("top", max_tool_calls=2 * EACH), "own", on_limit="wrap_up")
        await serving(stand, by=worker(left=seen))
        await stand.client.start(top, id="r")
        assert await stand.client.result("r", timeout_s=15) == "run_budget"
        assert seen == [4, 2, 0]

    play(story)


@pytest.mark.slow
def test_raising_the_budget_of_the_run_at_the_top_lets_a_parked_child_go_on(play: Play) -> None:
    async def story(stand: Stand) -> None:
        top = Workflow("top", max_tool_calls=2 * EACH)
        top.sub_workflow("sub", "child")
        await serving(stand, child(max_tool_calls=50))
        run = await stand.client.start(top, id="r")
        sub = await below(stand, "sub")
        assert used(await until_parked(stand, sub, "think")) == 2 * EACH
        (said,) = [note for note in (await stand.client.get(sub)).notes if note.kind == "parked"]
        assert "4 of 4 tool calls of the budget of run 'r' used" in said.text
        assert said.command == (
            f"treadle run resume r --add-tool-calls 50 && treadle run resume {sub}"
        )
        told = await run.explain()
        assert told.main.command == said.command
        with pytest.raises(RunConflict, match="would stop there again"):
            await stand.client.resume(sub)
        await stand.client.resume("r", add_tool_calls=EACH)
        await stand.client.resume(sub)

        def is_it(found: RunDocument | None) -> bool:
            step = found.steps["think"] if found else None
            return step is not None and (step.status, step.iterations) == ("parked", 3)

        await stand.until("it parks again", lambda: stand.document(sub), is_it)

    play(story)


def test_a_budget_that_others_have_used_up_since_is_told_as_it_stands_and_resumes_nothing(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        top = Workflow("top", max_tool_calls=2 * EACH)
        top.sub_workflow("left", "child")
        top.sub_workflow("right", "child")
        await serving(stand, child())
        run = await stand.client.start(top, id="r")
        left, right = await below(stand, "left"), await below(stand, "right")
        before = used(*[await until_parked(stand, each, "think") for each in (left, right)])
        most = before + 1
        await stand.client.resume("r", max_tool_calls=most)
        raised = await stand.until(
            "it is raised",
            lambda: stand.client.get(right),
            lambda view: view.step("think").budgets[0].limits.tool_calls == most,
        )
        (said,) = [note for note in raised.notes if note.kind == "parked"]
        assert f"{before} of {most} tool calls of the budget of run 'r' used" in said.text
        assert "has room again" in said.text and said.command == f"treadle run resume {right}"
        iterations = (await stand.client.get(left)).step("think").iterations
        await stand.client.resume(left)

        def is_it(found: RunDocument | None) -> bool:
            step = found.steps["think"] if found else None
            return step is not None and (step.status, step.iterations) == ("parked", iterations + 1)

        await stand.until("the other has used it", lambda: stand.document(left), is_it)
        words = f"{before + EACH} of {most} tool calls"
        told = await run.explain()
        assert told.is_stuck and words in told.main.text
        with pytest.raises(RunConflict, match=f"{words}.*would stop there again") as refused:
            await stand.client.resume(right)
        command = f"treadle run resume r --add-tool-calls 51 && treadle run resume {right}"
        assert command in str(refused.value)
        (said,) = [each for each in (await stand.client.get(right)).notes if each.kind == "parked"]
        assert words in said.text and said.command == command

    play(story)


def test_a_resume_that_raises_a_budget_needs_a_run_with_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        free = Workflow("free")
        free.wait_for_signal("go")
        await serving(stand)
        await stand.client.start(free, id="r")
        await stand.status("r", "running")
        with pytest.raises(RunConflict, match="no parked step"):
            await stand.client.resume("r", add_tool_calls=5)

    play(story)


def test_a_run_without_a_budget_reads_nothing_more_at_a_boundary(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    read = Documents.read

    async def reads(documents: Documents, run: str) -> Any:
        counted.append(run)
        return await read(documents, run)

    monkeypatch.setattr(Documents, "read", reads)

    async def story(stand: Stand) -> None:
        await serving(stand, by=worker(ends_at=5))
        await stand.client.start(loops(Workflow("free"), "own"), id="r")
        await stand.client.result("r", timeout_s=15)
        await stand.client.start(loops(Workflow("bound", max_tool_calls=99), "own"), id="s")
        await stand.client.result("s", timeout_s=15)
        assert counted.count("s") - counted.count("r") == 5

    play(story)
