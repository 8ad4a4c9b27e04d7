"""What stops a parked loop again, and that the one line that is told raises all of it.

Method: a property over any bounds, used up or not: own ones, those of a newer version, budgets of
the run and of those above. The line is parsed as the command line parses it and applied as the
engine's core applies it. Examples of what is told, by views and by refusals of a real client.
"""

from __future__ import annotations

import shlex
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.stage import Stage, chain, parked, play
from tests.client.stage import task as task_of

from treadle.cli import options, runs
from treadle.engine.core import Moment, budget
from treadle.engine.core.bounds import reached, resume
from treadle.sdk.client.bounds import Stops, asked, bounds, resume_commands, stops_text
from treadle.sdk.client.raising import raise_of, resume_request
from treadle.sdk.client.view import Held, of_document
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.errors import RunConflict
from treadle.sdk.messages import Failure, Parked, ResumeRequested, Task, WorkerPresence
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.settings import Settings
from treadle.sdk.spending import SharedBudget, SpendingLimits, Spent
from treadle.sdk.versions import under

PARKED_MS = 10_000
RUNS = ("r1", "mid", "top")
"""The run of the loop, and those above it."""

counts = st.sampled_from((0, 0, 1, 3, 60, 250_000, 7_000_000))
limits = st.builds(
    SpendingLimits,
    tool_calls=counts,
    input_tokens=counts,
    output_tokens=counts,
    total_tokens=counts,
    cost_micro_usd=counts,
)
spents = st.builds(
    Spent, tool_calls=counts, input_tokens=counts, output_tokens=counts, cost_micro_usd=counts
)


@st.composite
def loops(draw: st.DrawFn) -> Task:
    """Tasks of parked loops, whose bounds are used up or not."""
    owners = draw(st.lists(st.sampled_from(RUNS), unique=True).map(lambda of: sorted(of)))
    owners.sort(key=RUNS.index)
    task = task_of(
        loop=True,
        iteration=draw(st.integers(0, 9)),
        uncounted=0,
        max_iterations=draw(st.integers(1, 9)),
        started_ms=draw(st.integers(0, 2_000)),
        parked_ms=draw(st.integers(0, 2_000)),
        deadline_ms=draw(st.sampled_from((0, 5_000, 9_999, 10_000, 10_001, 400_000))),
        limits=draw(limits),
        spent=draw(spents),
        spent_now=draw(spents),
        budgets=tuple(
            SharedBudget(run=run, limits=draw(limits), others=draw(spents)) for run in owners
        ),
    )
    if not draw(st.booleans()):
        return task
    old, new = (
        AgentLoopStep(
            id="loop",
            type="think",
            max_iterations=draw(st.integers(1, 9)),
            max_duration_s=draw(st.sampled_from((0.0, 0.5, 9.0))),
            max_tool_calls=draw(counts),
            max_total_tokens=draw(counts),
            max_cost_usd=draw(st.sampled_from((0.0, 0.5, 7.0))),
        )
        for _ in range(2)
    )
    return under(task, old, new, "newer")


def requests_of(line: str) -> list[tuple[str, ResumeRequested]]:
    """Return (run, resume) of each command of a line, as the command line reads them."""
    found = list[tuple[str, ResumeRequested]]()
    for command in line.split(" && "):
        words = shlex.split(command)
        assert words[:3] == ["treadle", "run", "resume"]
        given_ = dict(zip(words[4::2], words[5::2], strict=True))
        step = given_.pop("--step", None)
        raised = runs.raised(
            options.read_count("--max-iterations", given_.pop("--max-iterations", None)),
            options.read_duration("--max-duration", given_.pop("--max-duration", None)),
            runs.Added(
                int(given_.pop("--add-tool-calls", "0")),
                int(given_.pop("--add-tokens", "0")),
                float(given_.pop("--add-cost", "0")),
            ),
        )
        assert not given_
        found.append((words[3], resume_request(step, raised)))
    return found


def resumed(task: Task, line: str, late_ms: int) -> object:
    """Return the register once the commands of a line are carried out, one after the other."""
    budgets = {each.run: each for each in task.budgets}
    requests = requests_of(line)
    assert requests[-1][0] == "r1", "what raises the budgets above comes first"
    names = [run for run, _ in requests]
    assert names == sorted(names, key=RUNS.index, reverse=True) and len({*names}) == len(names)
    for n, (run, request) in enumerate(requests, 20):
        if run in budgets:
            above = RunDocument(run=run, workflow="w", definition="v", limits=budgets[run].limits)
            moment = Moment(run, f"e{n}", PARKED_MS + late_ms, n)
            raised = budget.raised(above, request, moment)
            budgets[run] = msgspec.structs.replace(budgets[run], limits=raised.limits)
    step = AgentLoopStep(id="loop", type="think", max_iterations=9, on_limit="park")
    now = msgspec.structs.replace(task, budgets=tuple(budgets.values()))
    register = Parked(parent="e1", task=now, reason="a bound", parked_ms=PARKED_MS)
    moment = Moment("r1", "e90", PARKED_MS + late_ms, 90)
    return resume(step, register, requests[-1][1], moment)


@given(loops(), st.integers(0, 10**7), st.sampled_from(("", "loop")))
def test_the_line_that_is_told_leaves_no_bound_reached(task: Task, late_ms: int, step: str) -> None:
    found = bounds(task, PARKED_MS)
    after = resumed(task, resume_commands("r1", found, step), late_ms)
    assert isinstance(after, Task), "it is accepted, and the loop goes on"
    assert not reached(after, PARKED_MS + late_ms)
    assert bool(stops_text(found)) == bool(found)


@given(loops())
def test_a_bound_is_told_if_and_only_if_the_core_stops_there(task: Task) -> None:
    assert bool(bounds(task, PARKED_MS)) == bool(reached(task, PARKED_MS))


@given(
    loops(),
    st.builds(
        ResumeRequested,
        add_iterations=st.integers(0, 30),
        add_duration_ms=st.integers(0, 900_000),
        add_spending=st.builds(SpendingLimits, tool_calls=counts, cost_micro_usd=counts),
    ),
)
def test_what_is_told_to_somebody_who_raises_too_little_is_enough_and_no_less_than_asked(
    task: Task, request: ResumeRequested
) -> None:
    asked_by = raise_of(request)
    line = resume_commands("r1", bounds(task, PARKED_MS), by=asked_by)
    assert isinstance(resumed(task, line, 0), Task)
    (own,) = [each for run, each in requests_of(line) if run == "r1"]
    assert raise_of(own) == raise_of(own) | asked_by
    if not bounds(asked(task, "r1", request), PARKED_MS):
        assert isinstance(resume_once(task, request), Task), "what is accepted is enough"


def resume_once(task: Task, request: ResumeRequested) -> object:
    """Return the register once a resume of the loop's own run is carried out."""
    own = [
        msgspec.structs.replace(each, limits=budget.raised(of, request, moment).limits)
        if each.run == "r1"
        else each
        for each in task.budgets
        for of in [RunDocument(run="r1", workflow="w", definition="v", limits=each.limits)]
        for moment in [Moment("r1", "e20", PARKED_MS, 20)]
    ]
    now = msgspec.structs.replace(task, budgets=tuple(own))
    step = AgentLoopStep(id="loop", type="think", max_iterations=9, on_limit="park")
    register = Parked(parent="e1", task=now, reason="a bound", parked_ms=PARKED_MS)
    return resume(step, register, request, Moment("r1", "e20", PARKED_MS, 20))


# ---------------------------------------------------------------- what is told

USED_UP: dict[str, Any] = {
    "iteration": 5,
    "max_iterations": 5,
    "limits": SpendingLimits(tool_calls=3, cost_micro_usd=1_000_000),
    "spent": Spent(tool_calls=3, cost_micro_usd=1_200_000, input_tokens=9),
    "budgets": (
        SharedBudget(run="r1", limits=SpendingLimits(tool_calls=3, total_tokens=6), others=Spent()),
        SharedBudget(run="top", limits=SpendingLimits(tool_calls=4), others=Spent(tool_calls=2)),
    ),
}
LINE = (
    "treadle run resume top --add-tool-calls 51 && "
    "treadle run resume r1 --max-iterations +10 --add-tool-calls 50 --add-tokens 200000 "
    "--add-cost 6"
)
STOPS = (
    "max_iterations (5 iterations of at most 5), max_tool_calls (3 of 3 tool calls), "
    "max_cost (1.2 of 1 USD), the budget of run 'r1' (3 of 3 tool calls, 9 of 6 tokens), "
    "the budget of run 'top' (5 of 4 tool calls)"
)


@pytest.mark.parametrize("version", ["", "v2"])
def test_a_loop_at_many_bounds_is_told_with_all_of_them_and_one_line(version: str) -> None:
    entry = StepEntry("parked", 5, failure=Failure("max_iterations"))
    document = RunDocument(
        run="r1", workflow="flow", definition="v", status="parked", steps={"loop": entry}
    )
    register = parked("max_iterations", **USED_UP)
    stops = {"loop": Stops(bounds=bounds(register.task, PARKED_MS), version=version)}
    engine = WorkerPresence(incarnation="e", role="engine")
    held = {"loop": Held(register, 9)}
    view = of_document(document, chain().build(), held, [engine], None, stops)
    (note,) = view.notes
    at = f"under version {version}, the newest of its workflow, " if version else ""
    told = f"step 'loop' is parked at max_iterations after 5 iterations; {at}it would stop again"
    assert note.text == f"{told} at {STOPS}"
    assert note.command == LINE


def test_a_budget_that_is_used_up_in_two_ways_is_one_budget() -> None:
    entry = StepEntry("parked", 3, failure=Failure("run_budget"))
    document = RunDocument(
        run="r1", workflow="flow", definition="v", status="parked", steps={"loop": entry}
    )
    fields = {**USED_UP, "iteration": 3, "limits": SpendingLimits()}
    held = {"loop": Held(parked("run_budget", **fields), 9)}
    engine = WorkerPresence(incarnation="e", role="engine")
    (note,) = of_document(document, chain().build(), held, [engine]).notes
    assert note.text == (
        "step 'loop' is parked: 3 of 3 tool calls, 9 of 6 tokens of the budget of run 'r1', "
        "5 of 4 tool calls of the budget of run 'top' used"
    )


def test_a_refusal_tells_what_is_left_and_a_line_that_is_accepted(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        entry = StepEntry("parked", 5, failure=Failure("max_iterations"))
        own = SpendingLimits(tool_calls=3)
        await stage.document(
            "r1", definition=version, status="parked", steps={"loop": entry}, limits=own
        )
        fields = {**USED_UP, "limits": SpendingLimits(), "budgets": USED_UP["budgets"][:1]}
        await stage.register("r1", "loop", "think", parked("max_iterations", **fields))
        line = "treadle run resume r1 --max-iterations +10 --add-tool-calls 50"
        notes = (await stage.client.get("r1")).notes
        assert [note.command for note in notes if note.kind == "parked"] == [line]
        for too_little, left in (
            ({"add_iterations": 10}, "the budget of run 'r1' used up (3 of 3 tool calls)"),
            ({"add_tool_calls": 50}, "at max_iterations (5 iterations of at most 5). Raise it"),
            ({}, "(5 iterations of at most 5), the budget of run 'r1' (3 of 3 tool calls)"),
        ):
            with pytest.raises(RunConflict) as refused:
                await stage.client.resume("r1", **too_little)  # type: ignore[arg-type]
            assert left in str(refused.value)
            assert f"past that: `{line}`" in str(refused.value)
        await stage.client.resume("r1", add_iterations=10, add_tool_calls=50)
        assert await stage.stored("r1") == ["run.resume_requested"]

    play(settings, story)


def test_the_budget_of_a_run_is_raised_for_its_children_while_its_own_loop_stays_parked(
    settings: Settings,
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        parked_ = StepEntry("parked", 5, failure=Failure("max_iterations"))
        fields = {"definition": version, "limits": SpendingLimits(tool_calls=3)}
        register = parked("max_iterations", iteration=5, max_iterations=5)
        await stage.document("r1", **fields, steps={"loop": parked_})
        await stage.register("r1", "loop", "think", register)
        with pytest.raises(RunConflict, match="would stop there again at max_iterations"):
            await stage.client.resume("r1", add_tool_calls=50)
        active = {"loop": parked_, "first": StepEntry("active")}
        await stage.document("r2", **fields, steps=active)
        await stage.register("r2", "loop", "think", register)
        await stage.client.resume("r2", add_tool_calls=50)
        with pytest.raises(RunConflict, match="would stop there again"):
            await stage.client.resume("r2", add_cost_usd=5)

    play(settings, story)


def test_a_loop_that_ended_above_its_first_bound_shows_none() -> None:
    for iterations, shown in ((5, 5), (9, 0)):
        steps = {"loop": StepEntry("completed", iterations, 1, 2)}
        document = RunDocument(
            run="r1", workflow="flow", definition="v", status="completed", steps=steps
        )
        step = of_document(document, chain().build(), {}, None).step("loop")
        assert (step.iterations, step.max_iterations) == (iterations, shown)
