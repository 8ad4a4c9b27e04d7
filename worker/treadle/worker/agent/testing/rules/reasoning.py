"""Thinking: what goes with it, and that its blocks come back as they were.

A signature is checked wherever a block stands; blocks of earlier turns may be left out whole. In
the latest assistant message the blocks must be the ones that were issued, all, in their order:
while results of tools are handed in, and with manual thinking, it has to start with one.
"""

from __future__ import annotations

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft, Placed, Spoken
from treadle.worker.agent.testing.seal import REASONING
from treadle.worker.agent.testing.wire import as_int, as_object

BUDGET_TOKENS_MIN = 1024
KINDS = ("adaptive", "between_tools", "disabled", "enabled")


def check_thinking(draft: Draft) -> None:
    """Refuse settings of thinking that contradict each other."""
    config = as_object(draft.body.get("thinking"))
    if config is None:
        return
    if config.get("type") not in KINDS:
        raise Refused(
            f"thinking: Input tag '{config.get('type')}' found using 'type' does not match any "
            f"of the expected tags: {', '.join(repr(kind) for kind in KINDS)}"
        )
    if config["type"] == "enabled":
        budget = as_int(config.get("budget_tokens"))
        if budget is None:
            raise Refused("thinking.enabled.budget_tokens: Field required")
        if budget < BUDGET_TOKENS_MIN:
            raise Refused(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to "
                f"{BUDGET_TOKENS_MIN}"
            )
        if not draft.is_count and draft.body["max_tokens"] <= budget:
            raise Refused("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if draft.is_thinking and draft.body.get("temperature", 1) not in (1, None):
        raise Refused("`temperature` may only be set to 1 when thinking is enabled.")


def check_reasoning(draft: Draft) -> None:
    """Refuse reasoning that was made up, edited, or left out where it is needed."""
    spoken = [each for each in draft.conversation if each.role == "assistant"]
    latest = spoken[-1] if spoken else None
    for each in spoken:
        for placed in each.of_kind(*REASONING):
            _check_genuine(draft, placed, is_latest=each is latest)
    if latest is not None and draft.is_thinking:
        _check_complete(draft, latest)


def _check_genuine(draft: Draft, placed: Placed, *, is_latest: bool) -> None:
    block = placed.block
    if draft.seal.is_genuine(block):
        return
    if block["type"] == "thinking" and not block.get("signature"):
        raise Refused(f"{placed.path}.thinking.signature: Field required")
    if is_latest and draft.seal.has_issued(block.get("signature")):
        raise _modified(placed.path)
    field = "signature" if block["type"] == "thinking" else "data"
    raise Refused(f"{placed.path}: Invalid `{field}` in `{block['type']}` block")


def _check_complete(draft: Draft, latest: Spoken) -> None:
    calls = latest.of_kind("tool_use")
    if not calls:
        return
    # An answer that went on after a pause is more than one message: look at the one that calls.
    own = [placed for placed in latest.blocks if placed.message == calls[-1].message]
    found = [placed for placed in own if placed.kind in REASONING]
    issued = draft.seal.content_with([call.block["id"] for call in calls])
    # What was issued without thinking comes back without it.
    is_first = draft.thinking == "enabled" if issued is None else issued[0]["type"] in REASONING
    if is_first and own[0].kind not in REASONING:
        raise Refused(
            f"{own[0].path}.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{own[0].kind}`. When `thinking` is enabled, a final `assistant` message must start "
            "with a thinking block (preceeding the lastmost set of `tool_use` and `tool_result` "
            "blocks). We recommend you include thinking blocks from previous turns. To avoid "
            "this requirement, disable `thinking`."
        )
    if issued is None:
        return
    expected = [block for block in issued if block["type"] in REASONING]
    if expected != [placed.block for placed in found][-len(expected) :]:
        raise _modified(found[0].path if found else own[0].path)


def _modified(path: str) -> Refused:
    return Refused(
        f"{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message "
        "cannot be modified. These blocks must remain as they were in the original response."
    )
