"""A run in a backend against what Treadle itself knows of it: its tree, and what it has spent."""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.backends.backend import Backend, Kind, Shown

from treadle.sdk import Client, RunHandle
from treadle.sdk.tracing import names
from treadle.sdk.tracing.span import Span

PATIENCE_S = 180
"""Backends take spans in at their leisure: hundreds a second, on a machine with other work less."""
_POLL_S = 0.25
KINDS: dict[object, Kind] = {
    names.INVOKE_AGENT: "AGENT",
    names.CHAT: "LLM",
    names.EXECUTE_TOOL: "TOOL",
}
"""By operation; everything else is a link in the chain."""


async def shown(backend: Backend, client: Client, run: RunHandle) -> list[Shown]:
    """Wait for all of a run; return its spans once they are what the client's trace says.

    Of each trace of the run: one root, no orphan, no id twice, and every span with its parent,
    name, kind, times, error and links. The backend's sums of tokens are what the engine counted.
    """
    told = (await client.trace(run.id)).spans
    found: list[Shown] = []
    for trace_id in dict.fromkeys(span.trace_id for span in told):
        mine = [span for span in told if span.trace_id == trace_id]
        spans = await _arrived(backend, trace_id, len(mine))
        _check_tree(spans)
        keeps_links = all(span.links is not None for span in spans)
        expected = {_expected(span, keeps_links) for span in mine}
        wrong, missing = set(spans) - expected, expected - set(spans)
        assert not wrong and not missing, f"shown {wrong} in place of {missing}"
        found += spans
    trace_ids = list(dict.fromkeys(span.trace_id for span in told))
    tokens = await _check_sums(backend, client, run, trace_ids)
    print(f"{backend.name}: {len(found)} spans, {len(trace_ids)} traces, {tokens} tokens")
    return found


async def _arrived(backend: Backend, trace_id: str, count: int) -> list[Shown]:
    spans: list[Shown] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(spans) < count:
                spans = await asyncio.to_thread(backend.spans, trace_id)
                await asyncio.sleep(_POLL_S)
    except TimeoutError as exc:
        raise AssertionError(
            f"{backend.name} has {len(spans)} of {count} spans of {trace_id}"
        ) from exc
    return spans


def _check_tree(spans: list[Shown]) -> None:
    counted = Counter(span.span_id for span in spans)
    assert not {each for each, count in counted.items() if count > 1}, "an id twice"
    roots = [span.name for span in spans if not span.parent_id]
    assert len(roots) == 1, roots
    assert not [span for span in spans if span.parent_id and span.parent_id not in counted]


def _expected(span: Span, keeps_links: bool) -> Shown:
    return Shown(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_id,
        name=span.name,
        kind=KINDS.get(span.attributes.get(names.OPERATION), "CHAIN"),
        start_us=span.start_us,
        end_us=span.end_us,
        is_error=bool(span.error),
        links=frozenset((each.trace_id, each.span_id) for each in span.links)
        if keeps_links
        else None,
    )


async def _check_sums(
    backend: Backend, client: Client, run: RunHandle, trace_ids: list[str]
) -> str:
    totals = [await asyncio.to_thread(backend.total, each) for each in trace_ids]
    spent = [step.spent for step in (await run.get()).steps]
    assert sum(total.input_tokens for total in totals) == sum(s.input_tokens for s in spent)
    assert sum(total.output_tokens for total in totals) == sum(s.output_tokens for s in spent)
    assert {total.session for total in totals} == {run.id}, "traces of a run are one session"
    return "+".join(
        str(sum(sums))
        for sums in zip(
            *((total.input_tokens, total.output_tokens) for total in totals), strict=True
        )
    )
