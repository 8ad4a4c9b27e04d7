"""Compaction: one or a few calls of the summariser, and what becomes of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from treadle.worker.agent.core import compaction, earlier, kept, summary, tokens
from treadle.worker.agent.core.conversation import ModelError, Usage
from treadle.worker.agent.core.decide import Compact
from treadle.worker.agent.core.entries import Compacted
from treadle.worker.agent.core.request import context_tokens
from treadle.worker.agent.core.state import text_of
from treadle.worker.agent.models import retrying
from treadle.worker.agent.models.retrying import ModelBusy

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment

BUDGET_WAIT_S = 60.0
"""How long a summary waits for a budget of the provider; after it, it is made without a model."""


async def compact(equipment: Equipment, driver: Driver, action: Compact) -> None:
    """Summarise what the plan replaces, and append the compaction.

    A summariser that fails stops nothing: the summary is then made without it.
    """
    plan, state = action.plan, driver.state
    before = context_tokens(state)
    text, usage, cost, failed = "", Usage(), 0, False
    if plan.head:
        text, usage, cost = await _summarised(equipment, driver, plan)
        failed = not text
    block = compaction.block(plan, text or summary.fallback(plan), stage=action.stage)
    if journal := state.journal.rendered():
        block = [*block, earlier.note(f"Your run journal:\n{journal}")]
    if outputs := kept.listed(state.kept):
        block = [*block, earlier.note(outputs)]
    if not plan.head:
        block = []
    messages = compaction.replaced(list(state.messages), block, len(plan.head), plan.tail_chars_max)
    after = tokens.estimate(messages) + tokens.estimate(equipment.spec.instructions)
    await driver.append(
        Compacted(
            at_ms=driver.now_ms(),
            stage=action.stage,
            block=block,
            dropped=len(plan.head),
            tail_chars_max=plan.tail_chars_max,
            tokens_before=before,
            tokens_after=after,
            is_fallback=failed,
            usage=usage,
            cost_micro_usd=cost,
        )
    )
    fields = {
        "tokens_before": before,
        "tokens_after": after,
        "messages_before": len(state.messages),
        "messages_after": len(messages),
        "is_fallback": failed,
    }
    if action.stage == "compact":
        driver.emitter.emit("agent.compaction.run", **fields)
    else:
        driver.emitter.emit("agent.recovery.fired", stage=action.stage, **fields)


async def compact_by_force(equipment: Equipment, driver: Driver) -> bool:
    """Compact as far as it goes, because the model found the request too long."""
    policy, state = equipment.spec.compaction, driver.state
    if state.recovery.total >= policy.cap:
        return False
    plan = compaction.plan(
        list(state.messages),
        keep=policy.deep_keep,
        window=equipment.spec.context_window,
        stage="prune",
    )
    if not plan.is_useful:
        return False
    await compact(equipment, driver, Compact("prune", plan))
    return True


async def _summarised(
    equipment: Equipment, driver: Driver, plan: compaction.Plan
) -> tuple[str, Usage, int]:
    """Return the summary, '' if there is none that can be used, and what it took."""
    policy = equipment.spec.compaction
    usage, cost = Usage(), 0
    if not compaction.may_summarise(policy, driver.state.recovery):
        return "", usage, cost
    model = equipment.summary_model or equipment.model
    max_tokens = min(summary.tokens_max(policy, plan), model.max_output_tokens)
    text = plan.earlier
    try:
        for piece in summary.pieces(plan, window=model.context_window, max_tokens=max_tokens):
            request = summary.request(piece, text, model=model.name, max_tokens=max_tokens)
            called = await retrying.call(
                model,
                request,
                structs.replace(equipment.model_retry, wait_s_max=BUDGET_WAIT_S),
                timeout_s=equipment.model_timeout_s,
                passage=equipment.passage(model, driver.now_ms),
            )
            used = called.response.usage + called.wasted
            usage, cost = usage + used, cost + equipment.cost(model.name, used)
            text = text_of(called.response.content)
            if not summary.accept(text):
                return "", usage, cost
    except (ModelError, ModelBusy) as exc:
        used = exc.fault.usage
        return "", usage + used, cost + equipment.cost(model.name, used)
    return text, usage, cost
