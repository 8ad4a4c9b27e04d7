"""What operators look into: a step's input and output, the outputs of a run, lanes."""

from __future__ import annotations

from treadle.sdk.client.lane_list import LaneView, lanes_of
from treadle.sdk.client.looking import look
from treadle.sdk.client.provider_list import ProviderView, providers_of
from treadle.sdk.client.steps import (
    FAILED_ITEMS_MAX,
    StepDetail,
    StepOutput,
    outputs_of,
    step_detail,
    with_attempts,
)
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView
from treadle.sdk.client.windows import WindowView, windows_of
from treadle.sdk.payload import PAYLOAD_BYTES_MAX


class Inspection:
    """The part of a client that looks into runs, and into what they share."""

    _store: Store

    async def get(self, run: str, *, attempts: bool = False) -> RunView:
        """Return where a run stands, with what it waits for and what to do about it.

        With ``attempts`` also how many of them its ended steps took: a read for each such step.
        """
        found = await look(self._store, run)
        return await with_attempts(self._store, found) if attempts else found.view

    async def get_step(
        self, run: str, step: str, *, failed_items: int = FAILED_ITEMS_MAX
    ) -> StepDetail:
        """Return a step with its input, its output, and the first items of a map that failed.

        Both are whole, however large. Raises ``UserError`` if the workflow has no such step.
        """
        return await step_detail(self._store, run, step, failed_items)

    async def outputs(
        self, run: str, *, bytes_max: int = PAYLOAD_BYTES_MAX
    ) -> dict[str, StepOutput]:
        """Return what the steps of a run have handed on so far, by step.

        Of an output larger than ``bytes_max`` it says the size, and ``get_step`` returns it.
        """
        return await outputs_of(self._store, run, bytes_max)

    async def lanes(self) -> list[LaneView]:
        """Return the lanes that runs are in, with who is active and who waits: docs/lanes.md.

        Those of a workflow with ``concurrency``, and of singletons, are among them.
        """
        return await lanes_of(self._store)

    async def provider_budgets(self) -> list[ProviderView]:
        """Return the budgets of models' providers that workers share: what is free, until when
        a 429 holds them, who waits and who has been called. See docs/provider-budgets.md."""
        return await providers_of(self._store)

    async def collected(self, workflow: str | None = None) -> list[WindowView]:
        """Return the starts that are collected and are no run yet, by window, those first that
        close next: docs/debounce-and-batch.md. At most 1,000 keys are looked at."""
        return await windows_of(self._store, workflow)
