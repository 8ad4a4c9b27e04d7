"""Sub-agents, as the state of the agent that called them shows them.

    a call of the open turn ──> children[call.id]: the sub-agent's own State

What a sub-agent does is an entry of its own wrapped in ``Nested``, however deep, so one journal
holds the whole run and one fold gives all states and all counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.asks import Asking
from treadle.worker.agent.core.calls import CallStatus, ToolCall, ToolResult
from treadle.worker.agent.core.entries import Entry, Nested, Settled, Stopped
from treadle.worker.agent.core.spec import AgentSpec
from treadle.worker.agent.core.state import State, apply, fold
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.core.watch import OWN_TOOLS

DEPTH_MAX = 3
"""Agents below an agent: a deeper tree spends its budget on handing tasks on."""
RESULT_CHARS_MAX = 64_000
"""Of what a sub-agent comes to: as much as a tool may return by default."""
MARK = "/"
"""Joins the ids of the calls that lead to a call of a sub-agent; no id of a call holds it."""
_COUNTED = ("execute", "needs_approval", "uncertain")
_BOUNDS = ("max_steps", "max_tool_calls", "max_tokens", "max_cost", "timeout")


def address(path: str, call_id: str) -> str:
    """Return how a call is named from outside: the calls that lead to it, and its own id."""
    return f"{path}{MARK}{call_id}" if path else call_id


def wrapped(call_id: str, entries: Sequence[Entry]) -> tuple[Nested, ...]:
    """Return the entries of a sub-agent as entries of the agent whose call runs it."""
    return tuple(Nested(at_ms=entry.at_ms, call_id=call_id, entry=entry) for entry in entries)


# ------------------------------------------------------------------ what is open


def asking(state: State) -> dict[str, Asking]:
    """Return what people are asked, about sub-agents' calls too, by their addresses."""
    asked = dict(state.asking)
    for call_id, child in state.children.items():
        asked |= {address(call_id, id): each for id, each in asking(child).items()}
    return asked


def waiting(state: State) -> tuple[ToolCall, ...]:
    """Return the calls that people have to decide about, sub-agents' too, by their addresses."""
    calls = [call for call in state.open_calls if call.id in state.asking]
    for call_id, child in state.children.items():
        calls += [
            msgspec.structs.replace(call, id=address(call_id, call.id)) for call in waiting(child)
        ]
    return tuple(calls)


def pending(state: State) -> int:
    """Return how many calls may still run without being judged once more, sub-agents' too."""
    own = sum(call.decision in _COUNTED and call.name not in OWN_TOOLS for call in state.open_calls)
    return own + sum(pending(child) for child in state.children.values())


def demand(state: State) -> int:
    """Return how many calls of a model the next turn of a sub-agent makes, with those below it."""
    if state.stopped is not None:
        return 0
    if state.answer is None:
        return 1
    return sum(demand(child) for child in state.children.values())


def context_tokens(state: State) -> int:
    """Return about how many tokens all conversations of the run hold."""
    return state.context_tokens + sum(map(context_tokens, state.children.values()))


# ------------------------------------------------------------------ how it ends


def result(spec: AgentSpec, call: ToolCall, child: State) -> ToolResult:
    """Return what the call of a sub-agent that has stopped comes to."""
    stop = child.stopped
    assert stop is not None
    output = _shown(stop)
    status: CallStatus = "ok"
    if stop.reason == "completed":
        text = output or f"{call.name} has finished and said nothing."
    elif stop.reason in _BOUNDS and bytes(stop.output) != b"null":
        text = f"{output}\n\n[{call.name} was at its bound, {stop.reason}: this may be incomplete.]"
    else:
        status = "cancelled" if stop.is_closed else "error"
        why = f": {stop.detail}" if stop.detail else ""
        said = f"\nIts last words were:\n{output}" if output else ""
        text = f"{call.name} stopped with {stop.reason} before it was done{why}{said}"
    return ToolResult(
        id=call.id,
        name=call.name,
        status=status,
        content=tokens.cut(text, min(RESULT_CHARS_MAX, tokens.result_chars(spec.context_window))),
        effect="none" if status == "ok" else "unknown",
        error_type="" if status == "ok" else stop.reason,
    )


def _shown(stop: Stopped) -> str:
    if bytes(stop.output) == b"null":
        return stop.text.strip()
    value = msgspec.json.decode(stop.output)
    return value.strip() if isinstance(value, str) else bytes(stop.output).decode()


def closing(
    spec: AgentSpec, state: State, reason: StopReason, detail: str, now_ms: int
) -> tuple[Entry, ...]:
    """Return the entries that end every open sub-agent, the deepest first, and their calls."""
    entries: list[Entry] = []
    for call in state.open_calls:
        child = state.children.get(call.id)
        if child is None:
            continue
        ended = _ended(spec, child, reason, detail, now_ms)
        entries += wrapped(call.id, ended)
        settled = result(spec, call, fold(child, ended))
        entries.append(Settled(at_ms=now_ms, result=settled))
    return tuple(entries)


def _ended(
    spec: AgentSpec, child: State, reason: StopReason, detail: str, now_ms: int
) -> tuple[Entry, ...]:
    if child.stopped is not None:
        return ()
    stopped = Stopped(at_ms=now_ms, reason=reason, text=child.text, detail=detail, is_closed=True)
    return (*closing(spec, child, reason, detail, now_ms), stopped)


def unbegun(call: ToolCall, reason: str, now_ms: int) -> Settled:
    """Return the end of a call whose sub-agent has not begun and does not any more."""
    skipped = ToolResult(id=call.id, name=call.name, status="skipped", content=reason, attempts=0)
    return Settled(at_ms=now_ms, result=skipped)


def stops_in(state: State, entries: Sequence[Entry]) -> list[tuple[tuple[ToolCall, ...], Stopped]]:
    """Return the ends of sub-agents among the entries, each with the calls that lead to it."""
    found: list[tuple[tuple[ToolCall, ...], Stopped]] = []
    for entry in entries:
        if isinstance(entry, Nested):
            call = next(call for call in state.calls if call.id == entry.call_id)
            if isinstance(entry.entry, Stopped):
                found.append(((call,), entry.entry))
            child = state.children.get(entry.call_id, State())
            found += [((call, *path), stop) for path, stop in stops_in(child, [entry.entry])]
        state = apply(state, entry)
    return found
