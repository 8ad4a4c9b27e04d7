"""Calls and their results.

Every ``tool_use`` is answered by exactly one ``tool_result`` in what the user says next, the
results first in it; no result stands alone; ids are unique in the whole request.
"""

from __future__ import annotations

import re

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft, Spoken

CALL_ID = r"^[a-zA-Z0-9_-]+$"


def check_pairing(draft: Draft) -> None:
    """Refuse calls and results that do not belong together."""
    _check_ids(draft)
    previous: Spoken | None = None
    for spoken in draft.conversation:
        calls = previous.of_kind("tool_use") if previous is not None else []
        _check_results([call.block["id"] for call in calls], spoken)
        if previous is not None:
            _check_answered(previous, spoken)
        previous = spoken
    if previous is not None:
        _check_answered(previous, None)


def _check_ids(draft: Draft) -> None:
    seen: set[str] = set()
    for spoken in draft.conversation:
        for call in spoken.of_kind("tool_use"):
            call_id = call.block["id"]
            if not re.fullmatch(CALL_ID, call_id):
                raise Refused(f"{call.path}.tool_use.id: String should match pattern '{CALL_ID}'")
            if call_id in seen:
                raise Refused(f"{call.path}: `tool_use` ids must be unique")
            seen.add(call_id)


def _check_results(call_ids: list[str], spoken: Spoken) -> None:
    answered: set[str] = set()
    for result in spoken.of_kind("tool_result"):
        call_id = result.block["tool_use_id"]
        if call_id not in call_ids:
            raise Refused(
                f"{result.path}: unexpected `tool_use_id` found in `tool_result` blocks: "
                f"{call_id}. Each `tool_result` block must have a corresponding `tool_use` "
                "block in the previous message."
            )
        if call_id in answered:
            raise Refused(
                f"{result.path}: each tool_use must have a single result. Found multiple "
                f"`tool_result` blocks with id: {call_id}"
            )
        answered.add(call_id)


def _check_answered(caller: Spoken, answerer: Spoken | None) -> None:
    open_ids = [call.block["id"] for call in caller.of_kind("tool_use")]
    # Only the results before anything else count.
    for placed in answerer.blocks if answerer is not None else []:
        if placed.kind != "tool_result":
            break
        open_ids.remove(placed.block["tool_use_id"])
    if open_ids:
        raise Refused(
            f"messages.{caller.index}: `tool_use` ids were found without `tool_result` blocks "
            f"immediately after: {', '.join(open_ids)}. Each `tool_use` block must have a "
            "corresponding `tool_result` block in the next message."
        )
