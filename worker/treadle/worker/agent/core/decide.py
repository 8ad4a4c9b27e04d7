"""What has to happen next: a function of the agent, the state and the time.

    between turns   stop?  compact?  last answer?  ──────────────> Stop | Compact | CallModel
    in a turn       judge the calls, run them, let sub-agents
                    take their turns, ask people, check the
                    result, close the turn  ──> Judge | Run | Advance | Ask | Check | Record

The model proposes; this decides. A driver performs the action and appends what came of it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.worker.agent.core import compaction, earlier, nested, telling
from treadle.worker.agent.core.budget import calls_left, reached
from treadle.worker.agent.core.calls import FOR_PEOPLE, Decision, ToolCall, ToolResult
from treadle.worker.agent.core.conversation import Block, ModelRequest
from treadle.worker.agent.core.entries import (
    Answered,
    Entry,
    Heard,
    Judged,
    Purpose,
    Settled,
    Stage,
    Stopped,
    TurnEnded,
)
from treadle.worker.agent.core.request import build_request, context_tokens
from treadle.worker.agent.core.spec import FINAL_OUTPUT, AgentSpec
from treadle.worker.agent.core.state import State, text_of, tool_uses
from treadle.worker.agent.core.stops import OF_STEP, StopReason
from treadle.worker.agent.core.streaks import OPEN
from treadle.worker.agent.core.watch import OWN_TOOLS, assess

_ASKED_TO_STOP = {
    "max_steps": "the bound on turns",
    "max_tool_calls": "the bound on tool calls",
    "max_tokens": "the bound on tokens",
    "max_cost": "the bound on cost",
    "timeout": "the time limit",
    "context_exceeded": "the end of the context window",
}
_LAST = "This call did not run: the run is at its end, and this was the last answer."
_SHARED = (
    "This call did not run: the tool calls of the whole run, yours and those of the agents that "
    "work beside you, are used up. Give the best result you have."
)
_WHOLE = frozenset({"tool_use", "end_turn", "stop_sequence"})
"""Stop reasons of an answer that is whole; calls of any other do not run."""


class CallModel(NamedTuple):
    """Call the model; append ``Answered``."""

    request: ModelRequest
    purpose: Purpose


class Judge(NamedTuple):
    """Check the proposed calls against schemas, policy and hooks; append ``Judged``."""

    uses: tuple[Block, ...]


class Run(NamedTuple):
    """Run the calls; append ``Started`` and ``Settled`` for each."""

    calls: tuple[ToolCall, ...]


class Advance(NamedTuple):
    """Let the sub-agents that the calls run take a turn each; append ``Nested``, ``RoundEnded``."""

    calls: tuple[ToolCall, ...]
    asked: tuple[ToolCall, ...]
    """The agent's own calls that wait for people meanwhile."""


class Ask(NamedTuple):
    """Wait for people; append ``Asked`` once, then ``Replied`` for each answer."""

    calls: tuple[ToolCall, ...]


class Check(NamedTuple):
    """Check the proposed result against its type and the evidence; append ``Checked``."""

    call: ToolCall | None
    """The call of ``final_output``; ``None``: the text is the result."""
    text: str


class Compact(NamedTuple):
    """Have older messages summarised; append ``Compacted``."""

    stage: Stage
    plan: compaction.Plan


class Record(NamedTuple):
    """Append the entries: they follow from the state."""

    entries: tuple[Entry, ...]


class Finish(NamedTuple):
    """Nothing is left to do: the run has stopped."""


Action = CallModel | Judge | Run | Advance | Ask | Check | Compact | Record | Finish


def decide(spec: AgentSpec, state: State, now_ms: int, limit: str = "") -> Action:
    """Return the next action. ``limit`` names a bound that the engine has found reached."""
    if state.stopped is not None:
        return Finish()
    if state.answer is None:
        return _between(spec, state, now_ms, OF_STEP.get(limit, limit))
    return _in_turn(spec, state, state.answer, now_ms, limit)


# ------------------------------------------------------------------ between turns


def _between(spec: AgentSpec, state: State, now_ms: int, limit: str) -> Action:
    bound = limit or reached(spec.budget, state.used, state.elapsed_ms(now_ms)) or ""
    tokens = spec.context_window if state.is_overfull else context_tokens(state)
    stage = compaction.next_stage(
        spec.compaction, state.recovery, tokens, spec.context_window, state.turn
    )
    is_at_end = tokens >= spec.compaction.forced_final * spec.context_window
    if not bound and is_at_end and stage not in ("compact", "prune"):
        bound = "context_exceeded"
    if bound:
        return _at_bound(spec, state, bound, now_ms)
    if stage == "ask":
        return _stop("needs_human", now_ms, detail=compaction.ASK_TEXT)
    if stage is not None:
        keep = spec.compaction.keep if stage == "compact" else spec.compaction.deep_keep
        plan = compaction.plan(
            list(state.messages), keep=keep, window=spec.context_window, stage=stage
        )
        if plan.is_useful:
            return Compact(stage, plan)
    return CallModel(build_request(spec, state, "turn"), "turn")


def _at_bound(spec: AgentSpec, state: State, bound: str, now_ms: int) -> Action:
    # An answer that was paused goes back as it is: there is no room for the question.
    if spec.on_limit == "fail" or not state.turn or state.watch.streaks.is_paused:
        return _at_end(spec, state, bound, now_ms, text=state.text)
    if state.limit:
        return CallModel(build_request(spec, state, "final"), "final")
    how = f"by calling {spec.output_tool.name}" if spec.output_tool else "as text"
    text = (
        f"You have reached {_ASKED_TO_STOP.get(bound, bound)} of this run. This is your last "
        f"answer: give the best result you have now, {how}, and say what is missing. No other "
        "tool runs any more."
    )
    return Record(
        (Heard(at_ms=now_ms, source="notice", content=[earlier.note(text)], limit=bound),)
    )


# ------------------------------------------------------------------ in a turn


def _in_turn(spec: AgentSpec, state: State, answer: Answered, now_ms: int, limit: str) -> Action:
    if answer.stop_reason == "refusal":
        return _stop("refused", now_ms, text=text_of(answer.content))
    uses = tuple(tool_uses(answer.content))
    if uses and not state.is_judged:
        return _judge(spec, answer, uses, now_ms)
    if open_calls := state.open_calls:
        return _settle(spec, state, open_calls, now_ms, limit)
    if state.checked is not None and not state.checked.problem:
        return _completed(spec, state, answer, now_ms)
    if answer.purpose == "final":
        if not uses and spec.output_tool is None and state.checked is None:
            return _check_text(state, answer)
        text = text_of(answer.content)
        return _at_end(spec, state, state.limit or "max_steps", now_ms, text=text)
    if state.checked is None and _is_result(spec, state, answer, uses):
        return _check_text(state, answer)
    return _end_turn(spec, state, now_ms)


def _judge(spec: AgentSpec, answer: Answered, uses: tuple[Block, ...], now_ms: int) -> Action:
    if answer.stop_reason in _WHOLE and answer.purpose == "turn":
        return Judge(uses)
    if answer.purpose == "final":
        final = spec.output_tool.name if spec.output_tool else ""
        if answer.stop_reason in _WHOLE and any(use["name"] == final for use in uses):
            return Judge(uses)
        return Record((_all(uses, "over_budget", _LAST, now_ms),))
    reason = (
        "This call did not run: your answer was cut off "
        f"({answer.stop_reason or 'no stop reason'}), so its arguments may be incomplete. "
        "Issue it again, with a smaller payload or in several parts."
    )
    return Record((_all(uses, "truncated", reason, now_ms),))


def _all(uses: tuple[Block, ...], decision: Decision, reason: str, now_ms: int) -> Judged:
    calls = [
        ToolCall(
            id=use["id"],
            name=use["name"],
            input={},
            args_hash="",
            decision=decision,
            reason=reason,
        )
        for use in uses
    ]
    return Judged(at_ms=now_ms, calls=tuple(calls))


def _settle(
    spec: AgentSpec, state: State, calls: tuple[ToolCall, ...], now_ms: int, limit: str
) -> Action:
    refused = [call for call in calls if call.decision not in ("execute", *FOR_PEOPLE)]
    if refused:
        return Record(tuple(_refusal(call, call.reason, now_ms) for call in refused))
    answered = [entry for call in calls if (entry := _replied(state, call, now_ms)) is not None]
    if answered:
        return Record(tuple(answered))
    final = spec.output_tool.name if spec.output_tool else ""
    runnable = tuple(
        approved
        for call in calls
        if call.name != final and (approved := _approved(state, call)) is not None
    )
    if plain := tuple(call for call in runnable if call.name not in spec.subagents):
        return Run(plain)
    going_on = {call.id for call in runnable}
    asked = tuple(call for call in calls if call.decision in FOR_PEOPLE and call.id not in going_on)
    if runnable:
        return _delegate(spec, state, Advance(runnable, asked), now_ms, limit)
    if asked:
        return Ask(asked)
    result = next(call for call in calls if call.name == final)
    if state.checked is None:
        return Check(result, "")
    problem = state.checked.problem
    settled = ToolResult(
        id=result.id,
        name=result.name,
        status="error" if problem else "ok",
        content=problem or "The result was accepted.",
        error_type="invalid_output" if problem else "",
    )
    return Record((Settled(at_ms=now_ms, result=settled),))


def _delegate(spec: AgentSpec, state: State, action: Advance, now_ms: int, limit: str) -> Action:
    bound = limit or reached(spec.budget, state.used, state.elapsed_ms(now_ms))
    if not bound or state.is_round_open:
        return action  # A turn that has begun is ended first: its answer is paid for.
    reason = msgspec.convert(bound, StopReason)
    what = f"{_ASKED_TO_STOP[bound]} of {spec.name}, its sub-agents included, is reached"
    return Record(
        (
            *nested.closing(spec, state, reason, what, now_ms),
            *(
                nested.unbegun(call, f"{call.name} did not begin: {what}.", now_ms)
                for call in action.calls
                if call.id not in state.children
            ),
        )
    )


def _approved(state: State, call: ToolCall) -> ToolCall | None:
    """Return the call as it may run now, or ``None``."""
    if call.decision == "execute":
        return call
    reply = state.replies.get(call.id)
    if call.decision == "question" or reply is None or reply.verdict != "approve":
        return None
    if call.decision == "uncertain" and not state.has_reply(call.id):
        return None  # That approval was for the time before.
    if reply.input is None:
        return msgspec.structs.replace(call, decision="execute")
    return msgspec.structs.replace(
        call, decision="execute", input=reply.input, args_hash=reply.input_hash
    )


def _replied(state: State, call: ToolCall, now_ms: int) -> Settled | None:
    """Return the result that a person's answer makes of a call that does not run, if any."""
    reply = state.replies.get(call.id)
    if reply is None or call.decision not in FOR_PEOPLE:
        return None
    if call.decision == "uncertain" and reply.verdict == "expired":
        return _refusal(call, f"{call.reason} Nobody has answered in time.", now_ms)
    match reply.verdict:
        case "approve" if call.decision != "question":
            return None
        case "answer" | "approve":
            result = ToolResult(
                id=call.id, name=call.name, status="ok", content=reply.text or "(no text)"
            )
            return Settled(at_ms=now_ms, result=result)
        case "reject":
            why = f": {reply.text}" if reply.text else "."
            return _refusal(call, f"A person rejected this call{why}", now_ms)
        case "expired":
            return _refusal(
                call, "Nobody answered in time, so this call was not allowed to run.", now_ms
            )


def _refusal(call: ToolCall, text: str, now_ms: int) -> Settled:
    result = ToolResult(
        id=call.id,
        name=call.name,
        status="refused",
        content=text or "This call was not allowed to run.",
        error_type=OPEN if call.decision == "unavailable" else call.decision,
    )
    return Settled(at_ms=now_ms, result=result)


# ------------------------------------------------------------------ the end of a turn


def _is_result(spec: AgentSpec, state: State, answer: Answered, uses: tuple[Block, ...]) -> bool:
    """True when the answer is meant as the result of the run."""
    if uses:
        return all(state.results[use["id"]].terminate for use in uses)
    return _is_whole(answer) and spec.output_tool is None and bool(text_of(answer.content))


def _is_whole(answer: Answered) -> bool:
    """True for an answer that was not cut; one with an unknown stop reason is judged as it is."""
    return answer.stop_reason not in (
        "max_tokens",
        "pause_turn",
        "refusal",
        "model_context_window_exceeded",
    )


def _check_text(state: State, answer: Answered) -> Check:
    text = text_of(answer.content)
    if not text:
        texts = [
            result.content for result in state.results.values() if isinstance(result.content, str)
        ]
        text = texts[-1] if texts else ""
    return Check(None, text)


def _completed(spec: AgentSpec, state: State, answer: Answered, now_ms: int) -> Action:
    assert state.checked is not None
    text, output = text_of(answer.content), state.checked.output
    if answer.purpose == "turn":
        return _stop("completed", now_ms, text=text, output=output)
    return _at_end(spec, state, state.limit or "max_steps", now_ms, text=text, output=output)


def _end_turn(spec: AgentSpec, state: State, now_ms: int) -> Action:
    answer = state.answer
    assert answer is not None
    text = text_of(answer.content)
    problem = state.checked.problem if state.checked is not None else ""
    if not state.calls and text and spec.output_tool is not None and _is_whole(answer):
        problem = f"Give the result by calling {spec.output_tool.name}; text is not taken for it."
    found = assess(spec, state, text=text, problem=problem, proposed=_proposed(spec, answer))
    if found.stop is not None:
        stop: StopReason = found.stop
        if stop == "output_truncated" and answer.stop_reason != "max_tokens":
            stop = "context_exceeded"
        return _stop(stop, now_ms, text=state.text, detail=found.detail)
    notes = found.notes
    is_paused = found.watch.streaks.is_paused  # The answer goes on: nothing may stand between.
    watched = found.watch
    if not is_paused:
        elapsed_ms = state.elapsed_ms(now_ms)
        text, told = telling.notice(spec.budget, state.used, elapsed_ms, watched.told)
        notes = (*notes, text) if text else notes
        watched = msgspec.structs.replace(watched, told=told)
    watch = msgspec.Raw(msgspec.json.encode(watched))
    return Record((TurnEnded(at_ms=now_ms, notes=notes, detection=found.detection, watch=watch),))


def _proposed(spec: AgentSpec, answer: Answered) -> str:
    """Return what the answer gives as the result, as text."""
    for use in tool_uses(answer.content):
        if spec.output_tool is not None and use["name"] == spec.output_tool.name:
            return msgspec.json.encode(use["input"]).decode()
    return text_of(answer.content)


def _at_end(
    spec: AgentSpec,
    state: State,
    bound: str,
    now_ms: int,
    *,
    text: str,
    output: msgspec.Raw | None = None,
) -> Record:
    """Stop at a bound, and say which it is."""
    if bound == "context_exceeded":
        detail = (
            f"the conversation fills about {context_tokens(state)} of {spec.context_window} "
            "tokens, and compaction does not help any more. Choose a model with a larger window, "
            "or tools that return less"
        )
    else:
        elapsed_ms = state.elapsed_ms(now_ms)
        detail = telling.stop_text(spec.budget, bound, state.used, elapsed_ms)
    return _stop(bound, now_ms, text=text, output=output, detail=detail)


def _stop(
    reason: str,
    now_ms: int,
    *,
    text: str = "",
    output: msgspec.Raw | None = None,
    detail: str = "",
) -> Record:
    stopped = Stopped(
        at_ms=now_ms,
        reason=msgspec.convert(reason, StopReason),
        text=text,
        output=msgspec.Raw(b"null") if output is None else output,
        detail=detail,
    )
    return Record((stopped,))


def limit_calls(
    spec: AgentSpec, state: State, calls: tuple[ToolCall, ...], shared: int | None = None
) -> tuple[ToolCall, ...]:
    """Return the judged calls, those beyond the budget of tool calls marked.

    ``shared`` is how many more calls the agents above this one leave to it; ``None`` is any number.
    """
    if state.answer is not None and state.answer.purpose == "final":
        return tuple(
            msgspec.structs.replace(call, decision="over_budget", reason=_LAST)
            if call.decision in ("execute", *FOR_PEOPLE) and call.name != FINAL_OUTPUT
            else call
            for call in calls
        )
    left = calls_left(spec.budget, state.used)
    used_up = (
        f"This call did not run: the budget of {spec.budget.max_tool_calls} tool calls is used "
        "up. Give the best result you have."
    )
    if shared is not None and (left is None or shared < left):
        left, used_up = shared, _SHARED
    limited: list[ToolCall] = []
    for call in calls:
        # What acts on nothing but the run itself is no call that could be one too many.
        counts = call.decision in ("execute", "needs_approval") and call.name not in OWN_TOOLS
        if counts and left is not None:
            if left <= 0:
                call = msgspec.structs.replace(call, decision="over_budget", reason=used_up)
            left -= 1
        limited.append(call)
    return tuple(limited)
