"""What a run of an agent came to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic

from typing_extensions import TypeVar

from treadle.sdk.asks import Ask
from treadle.worker.agent.core import nested
from treadle.worker.agent.core.asks import asks
from treadle.worker.agent.core.budget import Counters
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.state import State
from treadle.worker.agent.core.stops import StopReason

Out = TypeVar("Out", default=str)


class AgentStopped(Exception):
    """Raised by ``result.unwrap()`` when the run did not complete."""

    def __init__(self, reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[Out]):
    """The end of a run, or the point where it waits for people."""

    stop_reason: StopReason
    output: Out | None
    """The checked result; at a bound, what the last answer gave; else ``None``."""
    text: str
    """The last text of the model."""
    used: Counters
    detail: str = ""
    waiting_for: tuple[ToolCall, ...] = ()
    """Calls that people have to decide about, when ``stop_reason`` is ``needs_human``."""
    state: State = field(default_factory=State, repr=False)
    """Everything: pass it to ``agent.run(state=...)`` to go on."""

    @property
    def asks(self) -> tuple[Ask, ...]:
        """The same, as a client sees it of a durable run."""
        return asks(nested.asking(self.state), self.waiting_for)

    def unwrap(self) -> Any:
        """Return the output of a completed run; raise ``AgentStopped`` otherwise."""
        if self.stop_reason != "completed":
            raise AgentStopped(
                self.stop_reason,
                f"the agent stopped with {self.stop_reason}"
                + (f": {self.detail}" if self.detail else "")
                + ". The whole conversation is in result.state.messages.",
            )
        return self.output
