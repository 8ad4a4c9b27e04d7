"""The newest versions of workflows, as loops look for them that follow theirs.

What is known is believed for a moment: a loop of a thousand iterations a second asks the server
once a second, however many runs there are of its workflow. Nobody else asks.
"""

from __future__ import annotations

import time
from collections import OrderedDict

import msgspec

from treadle.engine.core.advance import Placed, RegisterEvent, Work, is_live
from treadle.engine.core.bounds import task_of
from treadle.engine.core.versions import adopted, is_boundary
from treadle.engine.definitions import Definitions
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.messages import Register, Task
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects
from treadle.sdk.versions import successor

STALE_S = 1.0
"""How long the newest version is believed to be the newest."""
WORKFLOWS_MAX = 4096


class _Latest(msgspec.Struct, frozen=True):
    hash: str


_latest = msgspec.json.Decoder(_Latest)


class Versions:
    """The newest versions of the workflows of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects, definitions: Definitions) -> None:
        self._js = js
        self._subjects = subjects
        self._definitions = definitions
        self._known: OrderedDict[str, tuple[float, str]] = OrderedDict()

    async def at(self, step: Work, placed: Placed, event: RegisterEvent) -> tuple[Work, Placed]:
        """Return the step and its register as an event finds them: under the newest version, if
        the step is a loop that follows it and the event begins an iteration."""
        register = placed.register
        if not is_live(register) or not isinstance(step, AgentLoopStep):
            return step, placed
        if not is_boundary(register, event):
            return step, placed
        newest, version = await self._newest(step, task_of(register))
        if newest is None:
            return step, placed
        return newest, Placed(placed.sequence, adopted(register, step, newest, version))

    async def first(self, step: Work, register: Register) -> Register:
        """Return the first value of a step: of a loop that follows, under the newest version."""
        if not is_live(register) or not isinstance(step, AgentLoopStep):
            return register
        task = task_of(register)
        if not task.follows:
            return register
        newest, version = await self._newest(step, task)
        return register if newest is None else adopted(register, step, newest, version)

    async def _newest(self, step: AgentLoopStep, task: Task) -> tuple[AgentLoopStep | None, str]:
        """Return the loop in the newest version, and that; None if it is the task's or has none."""
        version = await self._latest(task.workflow)
        if version in ("", task.definition):
            return None, version
        plan = await self._definitions.plan(task.workflow, version)
        found = successor(plan.definition, step.id, step.type) if plan else None
        return found, version

    async def _latest(self, workflow: str) -> str:
        now_s = time.monotonic()
        known = self._known.get(workflow)
        if known is not None and now_s - known[0] < STALE_S:
            return known[1]
        s = self._subjects
        stored = await self._js.last(s.workflows_stream, s.workflow_latest(workflow))
        version = read(_latest, stored).hash if stored is not None and stored.data else ""
        self._known[workflow] = (now_s, version)
        self._known.move_to_end(workflow)
        if len(self._known) > WORKFLOWS_MAX:
            self._known.popitem(last=False)
        return version
