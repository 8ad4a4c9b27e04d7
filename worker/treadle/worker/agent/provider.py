"""The gate before a model's provider, which all workers of a namespace pass together.

    reserve ──> call ──> settle with what was used, and with what the provider said
       |                            └──> call who has a turn now
       too early: a place in the line; sleep a little, or ``ModelBusy``, and the iteration waits
       without a worker until it is called

One record for each name, changed by compare-and-set. Agents without a ``ProviderBudget`` have no
gate, and read nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import ProviderLine, ProviderRecord, ProviderWaiter
from treadle.sdk.provider_buckets import LOOKED_AT_MAX
from treadle.sdk.subjects import RegisterAddress
from treadle.worker.agent.core import provider_budget as core
from treadle.worker.agent.core.conversation import ModelFault, RateLimits, Usage
from treadle.worker.agent.core.provider_budget import ProviderBudget
from treadle.worker.lines import Asleep, waiter_at
from treadle.worker.shared import SharedValues, ValuesInMemory

TRIES_MAX = 50
"""Others write a few times for each call of theirs; whoever loses so often asks again later."""
CONTENDED_S = 0.5
RETRY_S = 0.005
NAME_CHARS_MAX = 200
ROUNDS_MAX = 20
"""Of calls in one go, when those who were called are gone: the next who looks goes on."""
LIMITED_S = 1.0
"""How long nobody calls after a 429 that names no time."""

_log = logging.getLogger("treadle.agent")
_decoder = msgspec.json.Decoder(ProviderRecord)

Change = Callable[[ProviderRecord, int], ProviderRecord]


class Gate:
    """The gate of one provider and model, or of the name that a budget gives, for one call."""

    def __init__(
        self,
        shared: SharedValues,
        name: str,
        budget: ProviderBudget,
        now_ms: Callable[[], int],
        address: RegisterAddress | None = None,
        *,
        after_loss: bool = False,
    ) -> None:
        self._shared = shared
        self._lines = shared.lines
        self._budget = budget
        self._name = (budget.name or name)[:NAME_CHARS_MAX]
        self._key = hashlib.sha256(self._name.encode()).hexdigest()[:32]
        self._now_ms = now_ms
        self._address = address
        self._alone = new_nonce()
        self._again_ms = 0 if after_loss else core.AGAIN_MS
        """A worker that was lost may have marked whom it calls, and have called nobody."""
        self._since_ms = 0
        self._tokens = 0
        self._reservation: core.Reservation | None = None
        self._stands: ProviderLine | None = None
        """Where it has a place, as far as it knows."""

    @property
    def line(self) -> str:
        """Key of the line in which the run waits without a worker; '' if it cannot."""
        return self._key if self._address is not None else ""

    async def reserve(self, tokens: int) -> tuple[float, str]:
        """Reserve a call; return how many seconds to wait before asking again, and why."""
        self._tokens, self._since_ms = tokens, self._since_ms or self._now_ms()
        for _ in range(TRIES_MAX):
            record, revision = await self._read()
            now_ms = self._now_ms()
            waiting, place = await self._standing(record)
            me = waiting[place] if place < len(waiting) else self._me()
            before = [each.tokens for each in waiting[:place]]
            are_more = place >= LOOKED_AT_MAX
            admission = core.admit(
                core.answered(record, me.place),
                self._budget,
                tokens,
                now_ms,
                before,
                are_more=are_more,
            )
            changed = admission.record
            if record.is_waited_for and not waiting and await self._lines.is_empty(self._key):
                changed = core.unlined(changed)
            if not admission.wait_ms:
                rest = [each for each in waiting if each.place != me.place]
                changed, called = core.calls(
                    changed, self._budget, rest, now_ms, again_ms=self._again_ms
                )
                if await self._write(record, changed, revision):
                    self._reservation = core.reservation(changed, tokens)
                    failpoints.reach("agent.call-reserved")
                    await self._let_in(changed, called)
                    self._again_ms = core.AGAIN_MS
                    return 0, ""
            else:
                has_entered = await self._enter("b")
                changed = msgspec.structs.replace(changed, is_waited_for=True)
                changed, called = core.calls(
                    changed, self._budget, waiting, now_ms, me.place, self._again_ms
                )
                if await self._write(record, changed, revision, always=has_entered):
                    failpoints.reach("agent.call-waits")
                    ready = [(each, at_ms) for each, at_ms in called if at_ms <= now_ms]
                    await self._call(changed, ready)
                    self._again_ms = core.AGAIN_MS
                    return admission.wait_ms / 1000, admission.why
            await asyncio.sleep(RETRY_S * (1 + random.random()))
        self._contended()
        return CONTENDED_S, f"too many workers ask for {self._name} at once"

    async def settle(self, usage: Usage, said: RateLimits | None) -> None:
        """Take note of what the call has used, and of what the provider said with it."""
        await self._change(self._settled(usage, said))

    async def limited(self, fault: ModelFault) -> None:
        """Settle a call that a 429 refused; nobody calls for as long as the provider asks.

        The call is the first one after it, except for those that asked earlier. All in one write:
        what it gives back calls nobody into the pause.
        """
        wait_ms = round((fault.retry_after_s or LIMITED_S) * 1000)
        why = f"the provider limits {self._name}"
        settled = self._settled(fault.usage, fault.limits)
        self._stands = None
        await self._enter("a")

        def change(record: ProviderRecord, now_ms: int) -> ProviderRecord:
            record = msgspec.structs.replace(settled(record, now_ms), is_waited_for=True)
            return core.held(record, wait_ms, why, now_ms)

        await self._change(change)

    async def leave(self) -> None:
        """Give up the place in the line, if it has one."""
        if self._stands:
            await self._lines.leave(self._key, self._me())

    # ---------------------------------------------------------------- the line

    def _me(self) -> ProviderWaiter:
        return waiter_at(self._address, self._alone, self._tokens, self._since_ms)

    async def _standing(self, record: ProviderRecord) -> tuple[list[ProviderWaiter], int]:
        """Return who is waited for, and how many of them come before this call."""
        if not record.is_waited_for and not self._stands:
            return [], 0
        waiting = await self._lines.first(self._key, LOOKED_AT_MAX)
        place = self._me().place
        for number, each in enumerate(waiting):
            if each.place == place:
                self._stands = self._stands or "b"
                return waiting, number
        self._stands = await self._lines.find(self._key, self._me())
        # In the last line it had its turn: whoever came since comes after it.
        return waiting, 0 if self._stands == "c" else len(waiting)

    async def _enter(self, line: ProviderLine) -> bool:
        """Take a place, and return True, unless it has one.

        The record is written after it: whoever finds the line empty has read the record before.
        """
        if self._stands in ("a", "b"):
            return False
        if self._stands == "c":
            line = "a"
        await self._lines.enter(self._key, line, self._me())
        self._stands = line
        failpoints.reach("agent.line-entered")
        return True

    async def _let_in(
        self, record: ProviderRecord, called: Sequence[tuple[ProviderWaiter, float]]
    ) -> None:
        """Leave the line, and call who comes next."""
        if self._stands:
            await self._lines.leave(self._key, self._me())
            self._stands = None
            failpoints.reach("agent.line-left")
        await self._call(record, called)

    async def _call(
        self, record: ProviderRecord, called: Sequence[tuple[ProviderWaiter, float]]
    ) -> None:
        """Send on who is called; those who will never come are taken out of the line.

        After the record says that they are called: an engine that stores the wait of one of them
        looks there.
        """
        for _ in range(ROUNDS_MAX):
            gone, now_ms = False, self._now_ms()
            for waiter, at_ms in called:
                state = await self._lines.state(waiter)
                if isinstance(state, Asleep):
                    if at_ms <= now_ms or state.due_ms > at_ms + core.LATE_MS:
                        failpoints.reach("agent.line-call")
                        await self._lines.call(waiter, state)
                elif state == "over":
                    await self._lines.leave(self._key, waiter)
                    gone = True
                elif at_ms <= now_ms and (
                    state == "held" or core.is_overdue(record, waiter.place, now_ms)
                ):
                    await self._lines.enter(self._key, "c", waiter)
                    gone = True
            if not gone:
                return
            record, called = await self._next()

    async def _next(self) -> tuple[ProviderRecord, Sequence[tuple[ProviderWaiter, float]]]:
        """Mark who is to be called now, and return them."""
        called: Sequence[tuple[ProviderWaiter, float]] = ()
        for _ in range(TRIES_MAX):
            record, revision = await self._read()
            waiting = await self._lines.first(self._key, LOOKED_AT_MAX)
            changed, called = core.calls(record, self._budget, waiting, self._now_ms())
            if await self._write(record, changed, revision):
                return changed, called
            await asyncio.sleep(RETRY_S * (1 + random.random()))
        return ProviderRecord(name=self._name), ()

    # ---------------------------------------------------------------- the record

    def _settled(self, usage: Usage, said: RateLimits | None) -> Change:
        """Return the change that replaces what the call has reserved by what it has used."""
        used = usage.input_tokens + usage.cache_write_tokens + usage.output_tokens
        reserved, self._reservation = self._reservation, None

        def change(record: ProviderRecord, now_ms: int) -> ProviderRecord:
            if reserved is not None:
                record = core.corrected(record, self._budget, reserved, used, now_ms)
            return core.told(record, said, now_ms)

        return change

    async def _change(self, change: Change) -> None:
        """Store what a function makes of the record, and call those who have their turn with it."""
        for _ in range(TRIES_MAX):
            record, revision = await self._read()
            now_ms = self._now_ms()
            changed, called = core.Calls(change(record, now_ms))
            if changed.is_waited_for:
                waiting = await self._lines.first(self._key, LOOKED_AT_MAX)
                me = self._me().place if self._stands else ""
                changed, called = core.calls(changed, self._budget, waiting, now_ms, me)
            if await self._write(record, changed, revision):
                failpoints.reach("agent.call-settled")
                await self._call(changed, called)
                return
            await asyncio.sleep(RETRY_S * (1 + random.random()))
        self._contended()

    async def _read(self) -> tuple[ProviderRecord, int]:
        raw, revision = await self._shared.read(self._key)
        return self._record(raw), revision

    async def _write(
        self,
        record: ProviderRecord,
        changed: ProviderRecord,
        revision: int,
        *,
        always: bool = False,
    ) -> bool:
        """Store a record over a revision, if it is another; False if another one stands."""
        if not always and changed == record:
            return True
        changed = msgspec.structs.replace(
            changed,
            write=new_nonce(),
            requests_per_minute=self._budget.requests_per_minute,
            tokens_per_minute=self._budget.tokens_per_minute,
        )
        is_mine = partial(_holds, changed.write.encode())
        value = msgspec.json.encode(changed)
        return bool(await self._shared.write(self._key, value, revision, is_mine))

    def _contended(self) -> None:
        _log.warning("agent.provider-budget-contended name=%s", self._name)

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
