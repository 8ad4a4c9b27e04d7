"""What was found out about a run, for ``reasons.py`` to make sense of. No I/O."""

from __future__ import annotations

import msgspec

from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.explain.rings import Ring
from treadle.sdk.client.limits import Wait
from treadle.sdk.client.streaming import StreamItem
from treadle.sdk.client.view import RunView, StepView
from treadle.sdk.messages import Beat, DeadLetter, Held, Task, WorkerPresence


class Taken(msgspec.Struct, frozen=True):
    """A worker that said, while one listened, that it holds a task."""

    worker: WorkerPresence
    held: Held
    executions: int = 1
    """Tasks that it holds in all."""


class Halt(msgspec.Struct, frozen=True):
    """Why the server gives out no messages of a consumer, and what undoes it."""

    text: str
    command: str
    until_ms: int = 0
    """When it ends by itself; 0 is not known, or never."""


class StepFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about the task of an active step."""

    task: Task
    is_given_out: bool = False
    """The server has delivered the task to a worker."""
    before: int = 0
    """Of a task that was not: tasks of its type that are before it."""
    is_more: bool = False
    """There are more than were counted."""
    pulls: int = 0
    """Requests for tasks of its type that workers have open: they have room."""
    halt: Halt | None = None
    """Why the server gives out no tasks of its type."""
    taken: Taken | None = None
    """Who holds it."""
    has_moved: bool = False
    """The step has moved on while one looked at it."""
    said: StreamItem | None = None
    """What the step said last."""
    wait: Wait | None = None
    """Of a task that waits for its limits: for which, and where it stands."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How far the engines have come with the events of the run's partition."""

    pending: int = 0
    """Events that are stored and not handled, those of other runs included."""
    oldest_ms: int = 0
    """When the oldest of them was stored."""
    behind_ms: int = 0
    """When the oldest of those was stored that keep this run waiting: events that no engine has
    been given yet, and the run's own; 0 is none. Another run's that is tried again is none."""
    handled_ms: int = 0
    """When an engine last had handled one; 0 is never."""
    halt: Halt | None = None
    """Why the server gives out no events to the engines."""


class StorageFault(msgspec.Struct, frozen=True):
    """Something for which the server takes no more writes."""

    text: str
    remedy: str
    stored_ms: int = 0
    """When the last message was stored before it; 0 is not known."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A run that holds a lane."""

    explanation: Explanation
    since_ms: int = 0
    """Since when it is active."""


class Letter(msgspec.Struct, frozen=True):
    """A dead letter, and by which number it is named."""

    letter: DeadLetter
    number: int


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one run."""

    view: RunView
    now_ms: int
    """The server's clock, which all the times are of."""
    steps: dict[str, StepFacts] = {}
    """Of active steps with a task, and of chunks of maps that are under way."""
    chunks: dict[str, tuple[StepView, ...]] = {}
    """Of a map: the first of its chunks that are under way."""
    presence: tuple[WorkerPresence, ...] = ()
    """The processes that are recorded, without those that are silent."""
    silent: tuple[WorkerPresence, ...] = ()
    """Those that are recorded, and gave no sign of life while one listened."""
    beats: tuple[Beat, ...] = ()
    """The last sign of life of each process that was heard."""
    domain: str = "main"
    engine: EngineFacts = EngineFacts()
    storage: tuple[StorageFault, ...] = ()
    letter: Letter | None = None
    holders: dict[str, Holder] = {}
    """What the runs are doing that hold its lane, as far as they were asked."""
    holders_stuck: int = 0
    """So many of those that hold its lane are stuck, the ones that wait for this run included."""
    ring: Ring | None = None
    """Runs that wait for each other, for which this one never ends."""
    children: dict[str, Explanation] = {}
    """What the runs are doing that its steps wait for."""
    hint: str = ""
    """Of a failed run: what to do about its cause."""
