"""The lists of maps as they are cut, kept for the next chunk within a bound on their size."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from treadle.engine.core import lists
from treadle.engine.core.facts import StepDecided
from treadle.engine.core.lists import Cut, ListFault
from treadle.engine.core.plan import Plan
from treadle.sdk.definition import MapStep
from treadle.sdk.errors import InvariantError
from treadle.sdk.messages import MapChunk
from treadle.sdk.run import RunDocument

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Of the lists that an engine keeps cut, the overhead of their pieces included."""

ReadInput = Callable[[Plan, RunDocument, MapStep], Awaitable[bytes]]


class Lists:
    """Cuts the lists of maps; ``read`` returns the input of a step as JSON."""

    def __init__(self, read: ReadInput, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._read = read
        self._kept: OrderedDict[tuple[str, str], Cut] = OrderedDict()
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self._cutting = asyncio.Lock()

    async def decided(
        self, plan: Plan, run: RunDocument, step: MapStep, chunk_bytes: int, item_bytes_max: int
    ) -> StepDecided:
        """Return how the list of a map is cut, or why it cannot be."""
        try:
            data = await self._read(plan, run, step)
        except ListFault as exc:
            return lists.refused(step, exc)
        decided = lists.decided(step, data, chunk_bytes, item_bytes_max)
        if decided.map is not None:
            self._keep(run, step, Cut(step, decided.map, data))
        return decided

    async def piece(
        self, plan: Plan, run: RunDocument, step: MapStep, number: int
    ) -> tuple[bytes, MapChunk]:
        """Return the items of a chunk as a JSON list, and what its task says of them."""
        cut = self._kept.get((run.run, step.id))
        if cut is None:
            # One at a time: after a restart every chunk under way asks for the same list.
            async with self._cutting:
                cut = self._kept.get((run.run, step.id))
                if cut is None:
                    cut = Cut(step, run.maps[step.id], await self._read(plan, run, step))
                    self._keep(run, step, cut)
        if len(cut) != run.maps[step.id].chunks:
            raise InvariantError(
                f"run {run.run!r}: the list of step {step.id!r} was cut into "
                f"{run.maps[step.id].chunks} pieces, and now is into {len(cut)}"
            )
        if (run.run, step.id) in self._kept:
            self._kept.move_to_end((run.run, step.id))
        return cut.piece(number)

    def forget(self, run: str, step: str) -> None:
        """Drop what is kept of a map that is over."""
        cut = self._kept.pop((run, step), None)
        self._kept_bytes -= cut.size_bytes if cut else 0

    def _keep(self, run: RunDocument, step: MapStep, cut: Cut) -> None:
        self.forget(run.run, step.id)
        self._kept[run.run, step.id] = cut
        self._kept_bytes += cut.size_bytes
        while self._kept_bytes > self._kept_bytes_max and len(self._kept) > 1:
            self.forget(*next(iter(self._kept)))
