"""Outputs that are too long for the model: cut, kept whole, and read again by it.
Method: whole runs against the strict fake; the journal is what a store would have."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
from tests.agent.core.histories import assistant, user
from tests.agent.run.stage import Stage, play, said

from treadle.worker.agent.core import kept
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.entries import Kept, Settled
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.evals import record, replay
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool

LINES = "".join(f"line {n}\n" for n in range(30_000))


@tool(idempotent=True)
async def export() -> str:
    """Export everything."""
    return LINES


EXPORT = turn(tool_use("export", {}, "big"))


def read(offset: int = 0, call_id: str = "big", id: str | None = None) -> Any:
    return tool_use(kept.READ, {"call_id": call_id, "offset": offset}, id)


def test_the_model_is_told_how_to_read_what_was_cut_and_reads_it() -> None:
    middle = LINES.index("line 15000\n")
    played = play([EXPORT, turn(read(middle)), turn(text("ok"))], tools=[export])
    assert played.reason == "completed"
    cut = played.results(1)["big"]
    assert len(cut.encode()) <= 64 * 1024
    assert f'{len(LINES)} bytes in all: the middle is left out; read_output with call_id "big"' in (
        cut
    )
    assert "line 15000\n" not in cut
    (page,) = played.results(2).values()
    assert page.partition("]\n")[2].startswith("line 15000\n")
    assert len(page.encode()) < 20_000
    # Reading is the runtime's own: it uses up no budget.
    assert played.result.used.tool_calls == 1


def test_the_whole_is_in_the_journal_once_in_parts_before_the_result() -> None:
    played = play([EXPORT, turn(text("ok"))], tools=[export])
    entries = played.stage.entries
    parts = [entry for entry in entries if isinstance(entry, Kept)]
    assert "".join(part.text for part in parts) == LINES
    assert [part.part for part in parts] == list(range(len(parts))) and len(parts) > 1
    settled = next(i for i, entry in enumerate(entries) if isinstance(entry, Settled))
    assert entries.index(parts[-1]) < settled
    raw = msgspec.json.encode(entries)
    assert raw.count(b"line 15000\\n") == 1


def test_every_page_can_be_read_without_being_taken_for_a_circle() -> None:
    pages: list[str] = []

    def next_turn(request: Any) -> Any:
        if request.index == 0:
            return EXPORT
        if request.index > 1:
            pages.extend(request.tool_results.values())
        following = re.search(r"next page begins at offset (\d+)", pages[-1]) if pages else None
        if pages and following is None:
            return turn(text("read all"))
        return turn(read(int(following[1]) if following else 0))

    played = play(next_turn, tools=[export])
    assert played.reason == "completed" and len(pages) > 10
    assert "".join(page.partition("]\n")[2] for page in pages) == LINES
    assert not played.stage.named("agent.loop.detected")


def test_an_output_beyond_what_a_run_keeps_is_cut_and_the_model_is_told() -> None:
    @tool(idempotent=True)
    async def flood() -> str:
        """Return too much."""
        return "x" * (kept.KEPT_BYTES_MAX - len(LINES) + 1)

    flooded = turn(tool_use("export", {}, "big"), tool_use("flood", {}, "flood"))
    ask = turn(read(call_id="flood"))
    played = play([flooded, ask, turn(text("ok"))], tools=[export, flood], sequential=True)
    assert f"the run keeps {kept.KEPT_BYTES_MAX} bytes" in played.results(1)["flood"]
    assert list(played.result.state.kept) == ["big"]
    assert "no output of a call 'flood' is kept; those that are: big" in played.said(2)


def test_what_a_hook_takes_out_of_a_result_cannot_be_read_again() -> None:
    def hide(call: Any, result: Any) -> Any:
        return msgspec.structs.replace(result, content=result.content.replace("line 1\n", ""))

    played = play(
        [EXPORT, turn(read()), turn(text("ok"))],
        tools=[export],
        hooks=Hooks(after_tool_call=hide),
    )
    assert played.reason == "completed"
    assert not [entry for entry in played.stage.entries if isinstance(entry, Kept)]
    assert "line 1\n" not in played.said(1) and "none" in played.said(2)


def test_an_agent_that_keeps_nothing_offers_no_way_to_read_it() -> None:
    played = play([EXPORT, turn(text("ok"))], tools=[export], keep_output=False)
    assert kept.READ not in played.requests[0].tool_names
    assert kept.READ not in played.results(1)["big"]
    assert not [entry for entry in played.stage.entries if isinstance(entry, Kept)]
    without_tools = play([turn(text("ok"))])
    assert kept.READ not in without_tools.requests[0].tool_names


def test_after_a_compaction_the_model_still_knows_what_it_can_read() -> None:
    window = 60_000

    def next_turn(request: Any) -> Any:
        if "You summarise" in str(request.body.get("system", "")):
            return turn(text("## Done\nexported\n## Next action\nread on"))
        answers = sum(message["role"] == "assistant" for message in request.messages)
        if "<earlier_conversation" in str(request.messages[0]):
            return turn(read(LINES.index("line 20000\n"))) if answers < 2 else turn(text("ok"))
        return turn(tool_use("export", {}, f"export{request.index}"))

    async def go() -> None:
        async with Stage(next_turn, window=window, context_window=window) as stage:
            agent = stage.agent(
                tools=[export], compaction=CompactionPolicy(keep=2, deep_keep=1, trigger=0.5)
            )
            opened = [user("Before."), assistant("Well."), user("And?"), assistant("So.")]
            state = msgspec.structs.replace(
                fold(State(), [agent.opened("Export.", 0)]), messages=tuple(opened)
            )
            state = fold(state, [Kept(call_id="big", tool="export", size_bytes=5, text="hello")])
            result = await stage.run(agent, "Export it.", state=state)
            assert result.stop_reason == "completed", result.detail
            after = next(
                request
                for request in stage.fake.requests
                if "<earlier_conversation" in str(request.messages[0])
            )
            assert "- big: export, 5 bytes" in said(after.messages[0])

    asyncio.run(go())


def test_a_recorded_run_replays_with_the_pages_it_has_read() -> None:
    played = play([EXPORT, turn(read(300_000)), turn(text("ok"))], tools=[export])
    replayed = asyncio.run(replay(played.agent, record(played.stage.entries)))

    def pages(entries: Any) -> list[Any]:
        return [
            entry.result.content
            for entry in entries
            if isinstance(entry, Settled) and entry.result.name == kept.READ
        ]

    assert pages(replayed) == pages(played.stage.entries)
