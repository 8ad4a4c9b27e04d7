"""Client to engine: what is asked of a run. Unknown fields are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from treadle.sdk.children import ParentRun
from treadle.sdk.definition import Singleton
from treadle.sdk.messages.common import NO_RAW, FromClient, MetadataValue
from treadle.sdk.messages.forks import Fork
from treadle.sdk.spending import UNLIMITED, SpendingLimits


class RunRequested(FromClient, frozen=True, tag="run.requested", tag_field="event", kw_only=True):
    workflow: str
    definition: str
    """Content hash of the definition the run is pinned to."""
    input: msgspec.Raw = NO_RAW
    metadata: Mapping[str, MetadataValue] = {}
    lane: str = ""
    """The run waits until every earlier request of this lane is over; empty is no lane."""
    singleton: Singleton = "none"
    """What the run does if it is not first in its lane; ``none`` and ``queue``: it waits."""
    places: int = 1
    """The run waits while so many earlier requests of its lane are not over."""
    priority: int = 0
    """Of the run among those that wait for a limit, -100 to 100; 0 leaves it to the steps."""
    version_policy: Literal["", "pin", "latest"] = ""
    """Whether its loops follow newer versions; empty is what the workflow says."""
    start_at_ms: int = 0
    """When the run begins; 0 is at once. A scheduled run enters its lane when it is time, so its
    request is not among those of the lane."""
    start_after_ms: int = 0
    """How long after its request the run begins, instead of a time."""
    trace: str = ""
    """The run's trace as ``tracing.ids`` writes a reference; empty is none."""
    caller: str = ""
    """W3C traceparent of the span in which the run was requested."""
    trace_state: str = ""
    """W3C tracestate of that span."""
    parent: ParentRun | None = None
    """The step of another run that started it; None for a run that clients or triggers start."""
    fork: Fork | None = None
    """What the run takes over of another one."""

    @property
    def is_scheduled(self) -> bool:
        """True if the run does not begin by its request."""
        return self.start_at_ms > 0 or self.start_after_ms > 0


class SignalReceived(
    FromClient, frozen=True, tag="run.signal_received", tag_field="event", kw_only=True
):
    name: str
    payload: msgspec.Raw = NO_RAW
    id: str = ""
    """Chosen by the sender: two signals with one id are one signal."""
    fork: str = ""
    """Nonce of the fork that has taken it over; it counts for the run of that one alone."""


MessageKind = Literal["steer", "follow_up", "reply"]


class MessageSent(FromClient, frozen=True, tag="run.message", tag_field="event", kw_only=True):
    """A message to a loop, stored on a subject of the step's own, where its worker reads it.

    It is appended by compare-and-set, so that one step has one message of an id, for ever.
    """

    step: str
    kind: MessageKind = "steer"
    """A label for the handler: ``steer`` what it is doing, ``follow_up`` what it has done,
    ``reply`` to what it asked."""
    id: str
    """Chosen by the sender: two messages to one step with one id are one message."""
    payload: msgspec.Raw = NO_RAW


class CancelRequested(
    FromClient, frozen=True, tag="run.cancel_requested", tag_field="event", kw_only=True
):
    """End the run, after what it has to undo."""

    reason: str = ""
    now: bool = False
    """Undo nothing, or nothing more."""


class PauseRequested(
    FromClient, frozen=True, tag="run.pause_requested", tag_field="event", kw_only=True
):
    """Start nothing more of the run until it is resumed; what is under way goes on."""

    reason: str = ""


class ResumeRequested(
    FromClient, frozen=True, tag="run.resume_requested", tag_field="event", kw_only=True
):
    """Move parked steps on, with raised bounds. ``add_*`` raise by, ``max_*`` raise to."""

    step: str = ""
    """Only this step; empty is every parked step, and the end of a pause."""
    max_iterations: int = 0
    add_iterations: int = 0
    max_duration_ms: int = 0
    add_duration_ms: int = 0
    max_spending: SpendingLimits = UNLIMITED
    add_spending: SpendingLimits = UNLIMITED
    """What is unlimited stays so, whatever is named here."""
