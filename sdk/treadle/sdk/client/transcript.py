"""What stands of what was said: the chunks of a run's output, folded by the rules of ``chunks``.

    transcript = Transcript()
    async for item in client.stream(run):
        if transcript.add(item):
            ...                                  # it stands, so far
    print(transcript.text("answer"))

Places (iteration, attempt) of a step only grow. A chunk of an earlier place comes from an
execution that was given up, and does not stand; one whose number has been seen was stored twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.sdk.chunks import AttemptBegan, Superseded, Text

if TYPE_CHECKING:
    from treadle.sdk.client.streaming import StreamItem


class Transcript:
    """Folds the items of one run's stream, in the order of their sequences."""

    def __init__(self) -> None:
        self._steps: dict[str, _Step] = {}

    def add(self, item: StreamItem) -> bool:
        """Take the next item; return whether it stands."""
        return self._steps.setdefault(item.step, _Step()).add(item)

    def text(self, step: str, iteration: int | None = None) -> str:
        """Return the text that a step has said and that stands: all of it, or of one iteration."""
        texts = self._steps[step].texts if step in self._steps else {}
        wanted = texts if iteration is None else [iteration]
        return "".join(text for number in wanted for _, text in texts.get(number, ()))


class _Step:
    """How far one step has spoken."""

    __slots__ = ("n", "place", "texts")

    def __init__(self) -> None:
        self.place = (-1, 0)
        self.n = -1
        self.texts: dict[int, list[tuple[int, str]]] = {}
        """By iteration: pieces with their numbers."""

    def add(self, item: StreamItem) -> bool:
        chunk = item.chunk
        iteration = chunk.iteration
        place = (iteration, chunk.attempt)
        if place < self.place or iteration < 0:
            return False
        if place > self.place:
            self.place, self.n = place, -1
            self.texts.pop(iteration, None)
        if isinstance(chunk, AttemptBegan):
            # Seen before: the same attempt is executed a second time, from its beginning.
            self.texts.pop(iteration, None)
        elif chunk.n <= self.n:
            return False
        self.n = chunk.n
        if isinstance(chunk, Superseded):
            kept = [said for said in self.texts.pop(iteration, ()) if said[0] < chunk.since]
            if kept:
                self.texts[iteration] = kept
        elif isinstance(chunk, Text):
            self.texts.setdefault(iteration, []).append((chunk.n, chunk.text))
        return True
