"""The people of the simulated world: a function that answers what they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from treadle.sdk.approvals import ask_of
from treadle.sdk.asks import Ask, Reply, answer_id
from treadle.sdk.client.deciding import check_reply
from treadle.sdk.definition import ApprovalStep, Step
from treadle.sdk.messages import MessageSent
from treadle.sdk.run import RunDocument

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World

Answers = Callable[[Ask], "Reply | None"]


class People:
    """Answers each ask once, as a client's message would."""

    def __init__(self, world: World, answers: Answers | None) -> None:
        self._world = world
        self._answers = answers
        self._answered: set[str] = set()

    def asked_by(self, step: Step, run: RunDocument | None) -> Ask | None:
        """Return what an approval asks that waits; None for any other step."""
        entry = run.steps.get(step.id) if run else None
        if not isinstance(step, ApprovalStep) or entry is None or entry.status != "active":
            return None
        return ask_of(step, entry.started_ms, self._world.outputs.input_of(step.id).value)

    def answer(self, step_id: str, ask: Ask) -> None:
        """Let people answer, unless they have, or will not yet."""
        message_id = answer_id(ask)
        if self._answers is None or message_id in self._answered:
            return
        reply = self._answers(ask)
        if reply is not None:
            step = self._world.plan.steps.get(step_id)
            if isinstance(step, ApprovalStep):
                check_reply("simulated", step, reply)
            self._answered.add(message_id)
            payload = msgspec.Raw(msgspec.json.encode(reply))
            event = MessageSent(step=step_id, kind="reply", id=message_id, payload=payload)
            self._world.after(message_id, 0, lambda: self._world.publish(event))
