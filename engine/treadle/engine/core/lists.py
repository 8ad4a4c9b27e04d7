"""The list of a map: found in the step's input, judged, and cut into the pieces of its chunks.

Where a piece begins follows from the list and the run's document, so whoever cuts again, with the
same or another engine, comes to the same pieces.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.facts import StepDecided
from treadle.engine.core.maps import laid_out, starts
from treadle.sdk.definition import MapStep
from treadle.sdk.limits import ITEMS_MAX
from treadle.sdk.messages import Failure, MapChunk
from treadle.sdk.run import MapState

LIST_BYTES_MAX = 16 * 1024 * 1024
"""Of one list. Only the output of another map is larger than one message; an engine reads all of
it to cut it, so this bounds its memory."""

PIECE_BYTES = 100
"""What a piece costs in memory besides its bytes, about."""

_items = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ListFault(Exception):
    """What is wrong with a list, for its author."""


class Cut:
    """A list in the pieces of its chunks."""

    def __init__(self, step: MapStep, state: MapState, data: bytes) -> None:
        items = _found(step, data, LIST_BYTES_MAX)
        begin = starts(_sizes(items), state.chunk_items, state.chunk_bytes)
        self._step = step
        self._begin = [*begin, len(items)]
        self._pieces = [
            b"[%b]" % b",".join(map(bytes, items[first:last]))
            for first, last in zip(self._begin, self._begin[1:], strict=False)
        ]
        self.size_bytes = sum(map(len, self._pieces)) + PIECE_BYTES * len(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def piece(self, number: int) -> tuple[bytes, MapChunk]:
        """Return the items of a chunk as a JSON list, and what its task says of them."""
        first, last = self._begin[number], self._begin[number + 1]
        retry = self._step.retry
        chunk = MapChunk(
            first=first,
            count=last - first,
            attempts_max=retry.max_attempts,
            non_retryable=retry.non_retryable,
            tolerated=self._step.tolerated_failures,
        )
        return self._pieces[number], chunk


def decided(step: MapStep, data: bytes, chunk_bytes: int, item_bytes_max: int) -> StepDecided:
    """Return how the list in a map's input is cut, or why it cannot be.

    ``chunk_bytes`` is the size of a piece, ``item_bytes_max`` that of the largest item.
    """
    try:
        items = _found(step, data, item_bytes_max)
    except ListFault as exc:
        return refused(step, exc)
    return StepDecided(step.id, True, map=laid_out(step, _sizes(items), chunk_bytes))


def refused(step: MapStep, fault: ListFault) -> StepDecided:
    """Return that a map cannot begin."""
    return StepDecided(step.id, False, Failure("not_a_list", str(fault), retryable=False))


def _sizes(items: list[msgspec.Raw]) -> list[int]:
    return [len(bytes(item)) + 1 for item in items]


def _found(step: MapStep, data: bytes, item_bytes_max: int) -> list[msgspec.Raw]:
    """Return the items of a map's list; raise ``ListFault`` that says what is there instead."""
    what = f"the input of map {step.id!r}"
    if step.over:
        try:
            fields = _fields.decode(data)
        except (msgspec.MsgspecError, RecursionError) as exc:
            raise ListFault(
                f"{what} is {_kind(data)}, and its list is to be under the key {step.over!r}. Give "
                "it an object with this key, or remove `over` from the step"
            ) from exc
        if step.over not in fields:
            known = ", ".join(map(repr, list(fields)[:10])) or "none"
            raise ListFault(
                f"{what} has no key {step.over!r}; its keys are: {known}. Correct the input, or "
                "`over` of the step"
            )
        data = bytes(fields[step.over])
        what += f" under {step.over!r}"
    try:
        items = _items.decode(data)
    except (msgspec.MsgspecError, RecursionError) as exc:
        raise ListFault(
            f"{what} is {_kind(data)}, and a map needs a list. Give it one, or name the key under "
            "which the list is with `over`"
        ) from exc
    if len(items) > ITEMS_MAX:
        raise ListFault(
            f"{what} has {len(items)} items, and {ITEMS_MAX} are allowed. Split it over several "
            "runs, or let an item stand for many"
        )
    for index, item in enumerate(items):
        if len(bytes(item)) > item_bytes_max:
            raise ListFault(
                f"{what} has an item, {index}, of {len(bytes(item))} bytes, and {item_bytes_max} "
                "are allowed, because it travels in one message. Pass a reference to large data"
            )
    return items


def _kind(data: bytes) -> str:
    """Return what a JSON value is, in words."""
    match data.lstrip()[:1]:
        case b"{":
            return "an object"
        case b'"':
            return "text"
        case b"[":
            return "a list"
        case b"n":
            return "null"
        case b"t" | b"f":
            return "true or false"
        case _:
            return "a number"
