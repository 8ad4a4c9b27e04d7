"""What ``treadle doctor`` looks at in the store: values that cannot be read, and dead letters.

Documents, definitions and triggers are read, which are small. Registers are not: `treadle run show`
names a damaged one, and the engine ends its run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

from treadle.cli.check import Check
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.client.letters import Wanted, letters_between
from treadle.sdk.client.lineage import Lineage
from treadle.sdk.client.store import Store
from treadle.sdk.errors import ServerError, StoredUnreadable

LETTERS_READ_MAX = 1_000
"""The newest dead letters and marks, of which the reasons of open ones are counted."""
NAMED_MAX = 5
"""Damaged values named one by one; of more only the number is told."""


async def check_stored(store: Store) -> list[Check]:
    """Return what is wrong with the stored values, and how many dead letters are open."""
    try:
        damaged = [error async for error in _damaged(store)]
        letters = await _reasons(store)
    except (ServerError, ApiError, Unknown) as error:
        return [Check("stored", "warn", f"what is stored cannot be read: {error}")]
    found = [Check("stored", "warn", str(error)) for error in damaged[:NAMED_MAX]]
    if len(damaged) > NAMED_MAX:
        rest = len(damaged) - NAMED_MAX
        found.append(Check("stored", "warn", f"{rest} more values that cannot be read"))
    if not damaged:
        text = "every run's document, every workflow and every trigger can be read"
        found.append(Check("stored", "ok", text))
    return [*found, *_letter_checks(letters)]


async def _damaged(store: Store) -> AsyncIterator[StoredUnreadable]:
    async for document in store.documents():
        if isinstance(document, StoredUnreadable):
            yield document
    for name, version in (await store.workflow_hashes()).items():
        try:
            await store.definition(name, version or str(await store.latest(name)))
        except StoredUnreadable as error:
            yield error
    async for _, trigger, _ in store.triggers():
        if isinstance(trigger, StoredUnreadable):
            yield trigger


async def _reasons(store: Store) -> Counter[str]:
    s = store.subjects
    state = (await store.js.api(f"STREAM.INFO.{s.dead_stream}"))["state"]
    end = int(state["last_seq"]) + 1
    start = max(1, int(state["first_seq"]), end - LETTERS_READ_MAX)
    reasons: Counter[str] = Counter()
    async for some in letters_between(store, Lineage(store), Wanted(), start, end):
        reasons.update(letter.reason for letter in some)
    return reasons


def _letter_checks(reasons: Counter[str]) -> list[Check]:
    """Failed runs are listed elsewhere; anything else was lost to its run."""
    events = {reason: count for reason, count in reasons.items() if reason != "run_failed"}
    text = f"{reasons['run_failed']} of failed runs"
    if not events:
        return [Check("letters", "ok", f"open dead letters: {text}")]
    counted = ", ".join(f"{count} {reason}" for reason, count in sorted(events.items()))
    return [
        Check(
            "letters",
            "warn",
            f"open dead letters: {counted}, {text}. Each says why its event was set aside",
            "treadle dead list",
        )
    ]
