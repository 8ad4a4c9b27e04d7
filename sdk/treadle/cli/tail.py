"""``treadle run tail``: what a run says, as it says it.

Text appears as it comes; all else is a line of its own in brackets. What an attempt that was
given up says afterwards is left out; with ``--json`` it is there, and does not stand.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.cli import exits, output, views
from treadle.sdk import chunks
from treadle.sdk.client import Client, StreamItem, Transcript

VALUE_CHARS_MAX = 200
"""Longest value of a report in its line."""


async def tail(
    client: Client, run_id: str, step: str | None, after: int, *, follow: bool, as_json: bool
) -> int:
    """Show what the run says; return its exit code once it has ended."""
    transcript = Transcript()
    screen = Screen(views.loops_of(await client.get(run_id)))
    last = after
    async for item in client.stream(run_id, step=step, after=after, follow=follow):
        stands = transcript.add(item)
        last = item.sequence
        if as_json:
            output.emit({**msgspec.structs.asdict(item), "stands": stands})
        elif stands:
            screen.show(item)
    screen.end_line()
    status = (await client.get(run_id)).status
    if follow:
        return exits.code_of_status(status)
    if not as_json:
        rest = f" --step {step}" if step else ""
        output.remark(
            f"run {run_id} is {status}; go on: treadle run tail {run_id}{rest} --after {last}"
        )
    return exits.OK


class Screen:
    """Where the last piece has left the line, and whose it was."""

    def __init__(self, loops: frozenset[str]) -> None:
        self._loops = loops
        self._place = ("", -1, 0)
        self._line: Literal["", "text", "thinking"] = ""
        """What the line under way holds; '' at its beginning."""
        self._tools: dict[str, str] = {}

    def show(self, item: StreamItem) -> None:
        """Show a chunk."""
        chunk = item.chunk
        self._head(item)
        match chunk:
            case chunks.Text():
                self._piece("text", chunk.text)
            case chunks.Thinking():
                self._piece("thinking", chunk.text)
            case chunks.AttemptBegan() | chunks.TurnStarted() | chunks.Logged():
                pass  # What is logged is shown by `treadle run logs`.
            case chunks.TurnEnded():
                self.end_line()
            case chunks.Superseded():
                self._mark("superseded: what was said above does not stand", "yellow")
            case chunks.Progress():
                value = _shorten(bytes(chunk.value).decode(errors="replace"))
                self._mark(f"{self._tools.get(chunk.call, 'progress')}: {value}")
            case chunks.ToolStarted():
                self._tools[chunk.id] = chunk.name
                self._mark(f"{chunk.name} started")
            case chunks.ToolEnded():
                self._mark(f"{chunk.name} ended: {chunk.status}")
            case chunks.Waiting():
                self._mark(f"waits for a person: {', '.join(chunk.calls)}", "bold yellow")
            case chunks.Stopped():
                detail = f": {chunk.detail}" if chunk.detail else ""
                self._mark(f"stopped: {chunk.reason}{detail}")
            case chunks.Dropped():
                self._mark(f"{chunk.count} pieces were lost here", "yellow")
            case chunks.Unknown():
                self._mark(f"{chunk.bytes} bytes that this version cannot read", "yellow")

    def end_line(self) -> None:
        """Begin a new line, unless it has begun."""
        if self._line:
            output.piece("\n")
            self._line = ""

    def _head(self, item: StreamItem) -> None:
        chunk = item.chunk
        place = (item.step, chunk.iteration, chunk.attempt)
        if place == self._place:
            return
        iteration = f", iteration {chunk.iteration}" if item.step in self._loops else ""
        attempt = f", attempt {chunk.attempt}" if chunk.attempt > 1 else ""
        self._place = place
        self._mark(f"{item.step}{iteration}{attempt}")

    def _piece(self, kind: Literal["text", "thinking"], text: str) -> None:
        style = "dim" if kind == "thinking" else ""
        if self._line != kind:
            self.end_line()
            text = text.lstrip("\n")
            if kind == "thinking":
                output.piece("thinking: ", style)
        output.piece(text, style)
        self._line = "" if text.endswith("\n") else kind

    def _mark(self, text: str, style: str = "dim") -> None:
        self.end_line()
        output.say(f"[{output.one_line(text)}]", style)


def _shorten(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
