"""The gate before a model's provider, which all workers of a namespace pass together.

    reserve ──> call ──> settle with what was used, and with what the provider said
       |
       too early: sleep a little, or ``ModelBusy``, and the iteration waits without a worker

One record for each name, changed by compare-and-set. Agents without a ``ProviderBudget`` have no
gate, and read nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable
from functools import partial

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.ids import new_nonce
from treadle.worker.agent.core import provider_budget as core
from treadle.worker.agent.core.conversation import ModelFault, RateLimits, Usage
from treadle.worker.agent.core.provider_budget import ProviderBudget, ProviderRecord
from treadle.worker.shared import SharedValues, ValuesInMemory

TRIES_MAX = 50
"""Others write a few times for each call of theirs; whoever loses so often asks again later."""
CONTENDED_S = 0.5
RETRY_S = 0.005
NAME_CHARS_MAX = 200
LIMITED_S = 1.0
"""How long nobody calls after a 429 that names no time."""

_log = logging.getLogger("treadle.agent")
_decoder = msgspec.json.Decoder(ProviderRecord)

Change = Callable[[ProviderRecord], ProviderRecord]


class Gate:
    """The gate of one provider and model, or of the name that a budget gives."""

    def __init__(
        self,
        shared: SharedValues,
        name: str,
        budget: ProviderBudget,
        now_ms: Callable[[], int],
    ) -> None:
        self._shared = shared
        self._budget = budget
        self._name = (budget.name or name)[:NAME_CHARS_MAX]
        self._key = hashlib.sha256(self._name.encode()).hexdigest()[:32]
        self._now_ms = now_ms

    async def reserve(self, tokens: int) -> tuple[float, str]:
        """Reserve a call; return how many seconds to wait before asking again, and why."""
        admission = core.Admission(ProviderRecord(name=self._name), 0)

        def change(record: ProviderRecord) -> ProviderRecord:
            nonlocal admission
            admission = core.admit(record, self._budget, tokens, self._now_ms())
            return admission.record

        if not await self._change(change):
            return CONTENDED_S, f"too many workers ask for {self._name} at once"
        failpoints.reach("agent.call-reserved")
        return admission.wait_ms / 1000, admission.why

    async def settle(self, reserved: int, usage: Usage, said: RateLimits | None) -> None:
        """Take note of what a call has used, and of what the provider said with it."""
        used = usage.input_tokens + usage.cache_write_tokens + usage.output_tokens

        def change(record: ProviderRecord) -> ProviderRecord:
            now_ms = self._now_ms()
            record = core.corrected(record, self._budget, reserved, used, now_ms)
            return core.told(record, said, now_ms)

        await self._change(change)

    async def limited(self, fault: ModelFault) -> None:
        """Let nobody call for as long as the provider asks after a 429."""
        wait_ms = round((fault.retry_after_s or LIMITED_S) * 1000)
        why = f"the provider limits {self._name}"
        await self._change(lambda record: core.held(record, wait_ms, why, self._now_ms()))

    async def _change(self, change: Change) -> bool:
        """Store what a function makes of the record; False if others were always faster."""
        for _ in range(TRIES_MAX):
            raw, revision = await self._shared.read(self._key)
            record = self._record(raw)
            changed = change(record)
            if changed is record or changed == record:
                return True
            changed = msgspec.structs.replace(changed, write=new_nonce())
            mine = changed.write.encode()
            value = msgspec.json.encode(changed)
            if await self._shared.write(self._key, value, revision, partial(_holds, mine)):
                return True
            await asyncio.sleep(RETRY_S * (1 + random.random()))
        _log.warning("agent.provider-budget-contended name=%s", self._name)
        return False

    def _record(self, raw: bytes) -> ProviderRecord:
        if raw:
            try:
                return _decoder.decode(raw)
            except (ValueError, RecursionError):
                _log.warning("agent.provider-budget-unreadable name=%s", self._name)
        return ProviderRecord(name=self._name)


def _holds(nonce: bytes, value: bytes) -> bool:
    return nonce in value


OF_THIS_PROCESS = ValuesInMemory()
"""For agents that run in this process, and not in a worker."""
