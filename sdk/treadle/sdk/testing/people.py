"""The people of the simulated world: a function that answers what they are asked.

What a client would refuse to send is not sent: the step goes on waiting, and the
ask says why, as does the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from treadle.sdk.approvals import ask_of
from treadle.sdk.asks import Ask, Reply, answer_id
from treadle.sdk.client.deciding import check_reply
from treadle.sdk.definition import ApprovalStep, Step
from treadle.sdk.errors import UserError
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import MessageSent
from treadle.sdk.run import RunDocument

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World

_log = logging.getLogger("treadle.testing")

Answers = Callable[[Ask], "Reply | None"]


class People:
    """Answers each ask once, as a client's message would."""

    def __init__(self, world: World, answers: Answers | None) -> None:
        self._world = world
        self._answers = answers
        self._answered: set[str] = set()
        self._refused: dict[str, str] = {}

    def asked_by(self, step: Step, run: RunDocument | None) -> Ask | None:
        """Return what an approval asks that waits; None for any other step."""
        entry = run.steps.get(step.id) if run else None
        if not isinstance(step, ApprovalStep) or entry is None or entry.status != "active":
            return None
        ask = ask_of(step, entry.started_ms, self._world.outputs.input_of(step.id).value)
        return msgspec.structs.replace(ask, problem=self._refused.get(step.id, ""))

    def answer(self, step_id: str, ask: Ask) -> None:
        """Let people answer, unless they have, or will not yet."""
        message_id = answer_id(ask)
        if self._answers is None or message_id in self._answered:
            return
        reply = self._taken(step_id, ask, self._answers)
        if reply is not None:
            self._answered.add(message_id)
            payload = msgspec.Raw(msgspec.json.encode(reply))
            event = MessageSent(step=step_id, kind="reply", id=message_id, payload=payload)
            self._world.after(message_id, 0, lambda: self._world.publish(event))

    def _taken(self, step_id: str, ask: Ask, answers: Answers) -> Reply | None:
        """Return the reply that the step takes; whoever is refused may say something else."""
        step, refused = self._world.plan.steps.get(step_id), None
        while (reply := answers(ask)) is not None and reply != refused:
            if not isinstance(step, ApprovalStep):
                return reply
            try:
                check_reply("simulated", step, reply)
            except UserError as exc:
                if self._refused.get(step_id) != str(exc):
                    told = {"step": step_id, "error": str(exc)}
                    _log.warning("simulate.answer-refused %s", spaced(told), extra=told)
                self._refused[step_id] = str(exc)
                ask, refused = msgspec.structs.replace(ask, problem=str(exc)), reply
            else:
                return reply
        return None
