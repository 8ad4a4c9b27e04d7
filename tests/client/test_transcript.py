"""What stands of what was said, by the rules that the chunks carry.

Hypothesis plays executions of one step that are killed, repeated and late; the model below knows
which of them the engine believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.chunks import AttemptBegan, Chunk, Progress, Superseded, Text
from treadle.sdk.client import StreamItem, Transcript


def fold(*said: Chunk) -> Transcript:
    transcript = Transcript()
    for sequence, chunk in enumerate(said, 1):
        transcript.add(StreamItem(sequence=sequence, time_ms=1, step="s", chunk=chunk))
    return transcript


def test_the_words_of_a_superseded_attempt_do_not_stand() -> None:
    killed = [AttemptBegan(n=1), Text(n=2, text="The ans")]
    second = [Superseded(attempt=2), AttemptBegan(attempt=2, n=1), Text(attempt=2, n=2, text="42")]
    assert fold(*killed).text("s") == "The ans"
    assert fold(*killed, second[0]).text("s") == ""
    assert fold(*killed, *second).text("s") == "42"


def test_words_of_committed_iterations_stand_whatever_becomes_of_later_ones() -> None:
    said = fold(
        AttemptBegan(n=1),
        Text(n=2, text="one "),
        AttemptBegan(iteration=1, n=1),
        Text(iteration=1, n=2, text="tw"),
        Superseded(iteration=1, attempt=2),
        AttemptBegan(iteration=1, attempt=2, n=1),
        Text(iteration=1, attempt=2, n=2, text="two"),
    )
    assert said.text("s") == "one two"
    assert (said.text("s", 0), said.text("s", 1), said.text("s", 2)) == ("one ", "two", "")
    assert said.text("unheard of") == ""


def test_a_part_of_an_attempt_can_be_taken_back_by_the_attempt_itself() -> None:
    said = fold(
        AttemptBegan(n=1),
        Text(n=2, text="kept "),
        Text(n=4, text="broken off"),
        Superseded(n=5, since=3),
        Text(n=6, text="whole"),
    )
    assert said.text("s") == "kept whole"


def test_the_same_attempt_executed_twice_stands_once() -> None:
    once = [AttemptBegan(n=1), Text(n=2, text="a"), Text(n=3, text="b")]
    assert fold(*once[:2], *once).text("s") == "ab"


@dataclass
class _World:
    """Executions of one step, and what the engine came to believe."""

    stored: list[Chunk] = field(default_factory=list[Chunk])
    committed: str = ""
    late: list[Chunk] = field(default_factory=list[Chunk])


@st.composite
def worlds(draw: st.DrawFn) -> _World:
    world = _World()
    for iteration in range(draw(st.integers(1, 4))):
        attempts = draw(st.integers(1, 3))
        for attempt in range(1, attempts + 1):
            place = {"iteration": iteration, "attempt": attempt}
            pieces = draw(st.lists(st.sampled_from("abc"), max_size=4))
            said: list[Chunk] = [AttemptBegan(**place, n=1)] if pieces else []
            if any(c.iteration == iteration for c in world.stored):
                said.insert(0, Superseded(**place))
            said += [Text(**place, n=2 + n, text=text) for n, text in enumerate(pieces)]
            if attempt < attempts:
                # Killed somewhere, or given up and still talking later on.
                cut = draw(st.integers(0, len(said)))
                world.late += said[cut:] if draw(st.booleans()) else []
                said = said[:cut]
            else:
                world.committed += "".join(pieces)
            for chunk in said:
                # An acknowledgement may be lost: then the next message is the same once more.
                world.stored += [chunk] * draw(st.sampled_from([1, 1, 1, 2]))
        is_spoken_over = bool(world.stored) and (
            (world.stored[-1].iteration, world.stored[-1].attempt) == (iteration, attempts)
        )
        if is_spoken_over and draw(st.booleans()):
            world.stored += [chunk for chunk in world.late if chunk.attempt < attempts]
    return world


@given(worlds())
def test_whatever_is_killed_repeated_or_late_the_words_of_the_committed_executions_stand(
    world: _World,
) -> None:
    assert fold(*world.stored).text("s") == world.committed


def test_an_item_that_does_not_stand_is_told_so() -> None:
    transcript = Transcript()

    def add(chunk: Chunk, step: str = "s") -> bool:
        return transcript.add(StreamItem(sequence=1, time_ms=1, step=step, chunk=chunk))

    assert add(Text(iteration=3, attempt=2, n=5, text="x"))
    assert not add(Text(iteration=3, attempt=2, n=5, text="x"))
    assert not add(Text(iteration=3, attempt=1, n=9, text="late"))
    assert not add(Progress(iteration=2, attempt=7, n=9))
    assert add(Progress(n=0), step="another")
