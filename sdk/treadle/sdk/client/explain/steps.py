"""What the active steps of a run are at, from the facts. Pure.

no register yet ─> moving | undispatched
under limits ────> limited
delayed ─────────> retry_delay | loop_delay | overdue
a sleep step ────> asleep | overdue
a map ───────────> mapping | what its chunks are at, as steps are, if none works
not given out ───> starting | slots_busy | untaken       (nobody serves it: a note says so)
given out ───────> executing | slot_wait | starting | holder_gone
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.sdk import chunks
from treadle.sdk.client.explain import limiting
from treadle.sdk.client.explain.facts import Facts, Halt, StepFacts, Taken
from treadle.sdk.client.explain.mapping import mapped
from treadle.sdk.client.explain.reason import Level, Reason, ReasonKind
from treadle.sdk.client.notes import START_WORKER
from treadle.sdk.client.streaming import StreamItem
from treadle.sdk.client.view import StepView
from treadle.sdk.errors import clause
from treadle.sdk.messages import Beat, WorkerPresence
from treadle.sdk.times import age, date, since, until

YOUNG_MS = 2_000
"""What was written as recently is on its way: nobody is to blame yet."""
OVERDUE_MS = 5_000
"""Timers fire within 250 ms of their time; after this long one has to wonder."""
HOLDERS_SHOWN_MAX = 3
"""Runs that hold slots, and processes that are silent, named in one reason."""
_DOCTOR = "treadle doctor"


def step_reason(step: StepView, facts: Facts) -> Reason | None:
    """Return what an active step is at; None where a note says it already."""
    found = facts.steps.get(step.id)
    if step.status == "active" and step.kind == "sleep":
        return _asleep(step, facts)
    if step.status != "active" or not step.type or step.doing == "paused":
        return None
    if step.kind == "map":
        return _mapping(step, facts)
    if step.line:
        return None  # A note says so.
    if step.doing in ("parked", "waiting"):
        text = f"has just {'parked' if step.doing == 'parked' else 'begun to wait'}"
        return _reason("moving", "works", step, text)
    if found is None or step.doing == "":
        return _undispatched(step, facts)
    if found.has_moved:
        text = f"step {step.id!r} went on while one looked at it"
        return Reason(kind="moving", level="works", text=text, step=step.id)
    if found.wait is not None:
        return limiting.queued(step, found.wait, facts.now_ms)
    if step.doing in ("delayed", "sleeping") and found.task.reserved_ms:
        return limiting.too_early(step, found.task, facts.now_ms)
    if step.doing != "queued_or_running":
        return _delayed(step, found, facts)
    if found.taken is not None:
        return _held(step, found, found.taken, facts)
    if found.is_given_out:
        return _given_out(step, facts)
    return _in_line(step, found, facts)


def serving(step: StepView, facts: Facts) -> list[WorkerPresence]:
    """Return the workers that serve the step's task type."""
    return [
        each
        for each in facts.presence
        if each.role == "worker" and each.domain == facts.domain and step.type in each.types
    ]


# ---------------------------------------------------------------- not with a worker


def _asleep(step: StepView, facts: Facts) -> Reason:
    when = until(step.due_ms, facts.now_ms)
    if facts.now_ms - step.due_ms > OVERDUE_MS:
        late = f"slept {when}, and has not been woken"
        return _reason("overdue", "problem", step, late, command=_DOCTOR)
    return _reason("asleep", "pause", step, f"sleeps {when}", until_ms=step.due_ms)


def _mapping(step: StepView, facts: Facts) -> Reason | None:
    if not serving(step, facts) and facts.view.pause is None:
        return None  # A note says so.
    reasons = (step_reason(chunk, facts) for chunk in facts.chunks.get(step.id, ()))
    return mapped(step, facts, [each for each in reasons if each is not None])


def _undispatched(step: StepView, facts: Facts) -> Reason:
    is_young = facts.now_ms - step.started_ms < YOUNG_MS
    when = since(step.started_ms, facts.now_ms)
    return Reason(
        kind="moving" if is_young else "undispatched",
        level="works" if is_young else "problem",
        text=f"step {step.id!r} has begun, and its task is not stored yet ({when})",
        command="" if is_young else _DOCTOR,
        step=step.id,
        since_ms=step.started_ms,
    )


def _delayed(step: StepView, found: StepFacts, facts: Facts) -> Reason | None:
    failure = found.task.last_failure
    if facts.now_ms - step.due_ms > OVERDUE_MS:
        if step.doing == "delayed" and not serving(step, facts):
            return None
        late = f"was due at {date(step.due_ms)}, {age(facts.now_ms - step.due_ms)} ago, and has "
        late += "not been sent on"
        since_ms = step.due_ms
        return _reason("overdue", "problem", step, late, command=_DOCTOR, since_ms=since_ms)
    when = f"({until(step.due_ms, facts.now_ms)})"
    if failure is None:
        text = f"pauses before {_what(step)} {when}"
        return _reason("loop_delay", "pause", step, text, until_ms=step.due_ms)
    asked = ""
    if failure.retry_after_ms:
        asked = f", which asked to wait {age(failure.retry_after_ms)} at least"
    failed = f"the last one failed: {clause(failure)}{asked}"
    text = f"waits before it tries {_what(step)} {when}; {failed}"
    command = f"treadle run history {facts.view.id}"
    return _reason("retry_delay", "pause", step, text, command=command, until_ms=step.due_ms)


def _in_line(step: StepView, found: StepFacts, facts: Facts) -> Reason | None:
    workers = serving(step, facts)
    if not workers:
        return None
    when = since(step.since_ms, facts.now_ms)
    loads = {beat.presence.incarnation: beat for beat in facts.beats}
    busy = [
        worker
        for worker in workers
        if (beat := loads.get(worker.incarnation)) is not None
        and (
            len(beat.held) >= worker.concurrency
            # A handler may have fewer slots than its worker, which beats do not tell.
            or (not found.pulls and any(held.type == step.type for held in beat.held))
        )
    ]
    if len(busy) == len(workers):
        beats = [loads[worker.incarnation] for worker in workers]
        count = sum(len(beat.held) for beat in beats)
        slots = sum(worker.concurrency for worker in workers)
        more = "more than " if found.is_more else ""
        tasks = "task of its type is" if found.before == 1 else "tasks of its type are"
        before = f"{more}{found.before or 'no'} {tasks}"
        are = "its worker is" if len(workers) == 1 else f"its {len(workers)} workers are"
        text = (
            f"{_is_to(step)} and no worker has room for it: {are} busy with {count} executions of "
            f"at most {slots}{_holders(beats, facts.now_ms)}, and {before} before it ({when})"
        )
        return _reason("slots_busy", "pause", step, text, command=START_WORKER)
    if found.halt is not None:
        text = f"{_is_to(step)} ({when}), and the server gives it to no worker: "
        text = f"{text}{halt_text(found.halt, facts.now_ms)}"
        until_ms = found.halt.until_ms
        command = found.halt.command
        return _reason("untaken", "problem", step, text, command=command, until_ms=until_ms)
    if facts.now_ms - step.since_ms < YOUNG_MS or len(loads) < len(workers):
        return _reason("starting", "works", step, f"{_is_to(step)} ({when})")
    if any(worker.blocked_ms for worker in workers):
        return None
    serve = (
        "one worker serves it, and has not"
        if len(workers) == 1
        else (f"{len(workers)} workers serve it, and none has")
    )
    text = f"{_is_to(step)}, {serve} taken it ({when})"
    return _reason("untaken", "problem", step, text, command=_DOCTOR)


def halt_text(halt: Halt, now_ms: int) -> str:
    """Return why the server gives out no messages of a consumer, with until when."""
    return f"{halt.text} ({until(halt.until_ms, now_ms)})" if halt.until_ms else halt.text


def silent_text(facts: Facts, type: str = "") -> str:
    """Return which processes are recorded and give no sign of life; without a type, engines."""
    names = [
        f"{each.role} {each.name or each.incarnation!r}"
        for each in facts.silent
        if (type in each.types if type else each.role == "engine")
    ]
    if not names:
        return ""
    gives = "gives" if len(names) == 1 else "give"
    return f"; {_listed(names)} {gives} no sign of life: dead, stopped, or cut off from the server"


def _holders(beats: Sequence[Beat], now_ms: int) -> str:
    """Return who holds the slots of workers, and since when, the longest first."""
    held = [each for beat in beats for each in beat.held if each.executing_ms > 0]
    held.sort(key=lambda each: -each.executing_ms)
    runs = [f"run {each.run} ({since(now_ms - each.executing_ms, now_ms)})" for each in held]
    return f", held by {_listed(runs)}" if runs else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - HOLDERS_SHOWN_MAX
    return f"{', '.join(names[:HOLDERS_SHOWN_MAX])}{f' and {more} more' if more > 0 else ''}"


# ---------------------------------------------------------------- with a worker


def _held(step: StepView, found: StepFacts, taken: Taken, facts: Facts) -> Reason:
    worker = f"worker {taken.worker.name or taken.worker.incarnation!r}"
    if taken.held.executing_ms == 0:
        beats = [each for each in facts.beats if each.presence == taken.worker]
        text = (
            f"{_is_to(step)} and waits for a slot of {worker}, which holds {taken.executions} "
            f"tasks and executes {taken.worker.concurrency} at once"
            f"{_holders(beats, facts.now_ms)} ({since(step.since_ms, facts.now_ms)})"
        )
        return _reason("slot_wait", "pause", step, text, command=START_WORKER)
    began_ms = step.since_ms
    if taken.held.executing_ms > 0:
        began_ms = facts.now_ms - taken.held.executing_ms
    parts = [f"executes {_what(step)} on {worker} ({since(began_ms, facts.now_ms)})"]
    if found.said is not None:
        parts.append(f"{age(facts.now_ms - found.said.time_ms)} ago {_said(found.said)}")
    if found.task.timeout_ms:
        ends_ms = began_ms + found.task.timeout_ms
        parts.append(f"this attempt may run {until(ends_ms, facts.now_ms)}")
    if step.deadline_ms:
        parts.append(f"the loop may run {until(step.deadline_ms, facts.now_ms)}")
    if facts.view.deadline_ms:
        parts.append(f"the run may run {until(facts.view.deadline_ms, facts.now_ms)}")
    return _reason("executing", "works", step, "; ".join(parts), since_ms=began_ms)


def _given_out(step: StepView, facts: Facts) -> Reason | None:
    when = since(step.since_ms, facts.now_ms)
    workers = serving(step, facts)
    if not workers:
        return None
    heard = {beat.presence.incarnation for beat in facts.beats}
    is_certain = all(worker.incarnation in heard for worker in workers)
    if facts.now_ms - step.since_ms < YOUNG_MS or not is_certain:
        text = f"{_is_to(step)} and was given to a worker ({when})"
        return _reason("starting", "works", step, text)
    if any(worker.blocked_ms for worker in workers):
        # What a blocked worker has received and not looked at yet, it does not tell.
        text = f"{_is_to(step)}, was given to a worker ({when}), and no free one has it"
        return _reason("blocked", "problem", step, text, command=_DOCTOR)
    text = (
        f"{_is_to(step)}, was given to a worker ({when}), and none that lives has it: that worker "
        "has died, or lost its connection. An engine gives it out again within seconds"
        f"{silent_text(facts, step.type)}"
    )
    command = f"treadle run watch {facts.view.id}"
    return _reason("holder_gone", "pause", step, text, command=command)


# ---------------------------------------------------------------- leaves


def _reason(
    kind: ReasonKind,
    level: Level,
    step: StepView,
    text: str,
    *,
    command: str = "",
    since_ms: int = 0,
    until_ms: int = 0,
) -> Reason:
    return Reason(
        kind=kind,
        level=level,
        text=f"step {step.id!r} {text}",
        command=command,
        step=step.id,
        since_ms=since_ms or step.since_ms,
        until_ms=until_ms,
    )


def _what(step: StepView) -> str:
    attempt = f"attempt {step.attempt}" if step.attempt > 1 else ""
    if step.kind != "agent_loop":
        return attempt or "its task"
    # Iterations are named from 0 and counted from 1, as a bound counts them.
    nth = (
        f" ({step.iterations + 1} of at most {step.max_iterations})" if step.max_iterations else ""
    )
    return f"iteration {step.iteration}{nth}{f', {attempt}' if attempt else ''}"


def _is_to(step: StepView) -> str:
    return f"is to execute {_what(step)}"


def _said(item: StreamItem) -> str:
    chunk = item.chunk
    match chunk:
        case chunks.ToolStarted():
            return f"it began tool {chunk.name!r}"
        case chunks.ToolEnded():
            return f"tool {chunk.name!r} ended as {chunk.status}"
        case chunks.TurnStarted():
            return f"it asked the model (turn {chunk.turn})"
        case chunks.Text() | chunks.Thinking():
            return "it said something"
        case chunks.Progress():
            return "it reported progress"
        case _:
            return "it gave a sign"
