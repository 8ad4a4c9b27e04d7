"""The handle of one run: the client's methods, with the run's id filled in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import UNSET

from treadle.sdk.client.answering import Approval, PendingAsk
from treadle.sdk.client.event import RunEvent
from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.fork_wanted import Version
from treadle.sdk.client.logs import LogLine
from treadle.sdk.client.raising import Raised
from treadle.sdk.client.steps import StepDetail, StepOutput
from treadle.sdk.client.streaming import StreamItem
from treadle.sdk.client.view import RunView
from treadle.sdk.messages import MessageKind
from treadle.sdk.tracing.calling import TraceMode

if TYPE_CHECKING:
    from treadle.sdk.client.client import Client

T = TypeVar("T")


class RunHandle:
    """One run, through the client that made the handle."""

    def __init__(self, client: Client, run: str) -> None:
        self._client = client
        self.id = run

    def __repr__(self) -> str:
        return f"RunHandle({self.id!r})"

    @overload
    async def result(self, type_: None = None, timeout_s: float | None = None) -> Any: ...
    @overload
    async def result(self, type_: type[T], timeout_s: float | None = None) -> T: ...
    async def result(self, type_: type[Any] | None = None, timeout_s: float | None = None) -> Any:
        """Wait for the end and return the result: see ``Client.result``."""
        return await self._client.result(self.id, type_, timeout_s)

    async def get(self) -> RunView:
        """Return where the run stands: see ``Client.get``."""
        return await self._client.get(self.id)

    async def get_step(self, step: str) -> StepDetail:
        """Return a step with its input and output: see ``Client.get_step``."""
        return await self._client.get_step(self.id, step)

    async def outputs(self) -> dict[str, StepOutput]:
        """Return what its steps have handed on: see ``Client.outputs``."""
        return await self._client.outputs(self.id)

    async def explain(self) -> Explanation:
        """Return why the run is not getting on, and what to do: see ``Client.explain``."""
        return await self._client.explain(self.id)

    async def children(self) -> tuple[RunView, ...]:
        """Return the runs that its steps have started: see ``Client.children``."""
        return await self._client.children(self.id)

    def history(self) -> AsyncIterator[RunEvent]:
        """Iterate over the stored events so far: see ``Client.history``."""
        return self._client.history(self.id)

    def watch(self) -> AsyncIterator[RunEvent]:
        """Iterate until the run has ended: see ``Client.watch``."""
        return self._client.watch(self.id)

    def logs(
        self,
        *,
        step: str | None = None,
        iteration: int | None = None,
        level: str = "debug",
        after: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Iterate over what the run's handlers have logged; see ``Client.logs``."""
        return self._client.logs(
            self.id, step=step, iteration=iteration, level=level, after=after, follow=follow
        )

    def stream(
        self, *, step: str | None = None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[StreamItem]:
        """Iterate over what the run says while it works: see ``Client.stream``."""
        return self._client.stream(self.id, step=step, after=after, follow=follow)

    async def signal(self, name: str, payload: object = None, id: str | None = None) -> str:
        """Send a signal: see ``Client.signal``."""
        return await self._client.signal(self.id, name, payload, id)

    async def cancel(self, reason: str = "", *, now: bool = False) -> bool:
        """Cancel the run: see ``Client.cancel``."""
        return await self._client.cancel(self.id, reason, now=now)

    async def send(
        self, step: str, payload: object, kind: MessageKind = "steer", id: str | None = None
    ) -> int:
        """Send a message to an agent loop: see ``Client.send``."""
        return await self._client.send(self.id, step, payload, kind, id)

    async def approvals(self) -> tuple[PendingAsk, ...]:
        """Return what the run asks people: see ``Client.approvals``."""
        return await self._client.approvals(self.id)

    async def approve(self, step: str, call_id: str, **answer: Unpack[Approval]) -> int:
        """Let a call run: see ``Client.approve``."""
        return await self._client.approve(self.id, step, call_id, **answer)

    async def reject(self, step: str, call_id: str, *, text: str = "", by: str = "") -> int:
        """Refuse a call, or a question: see ``Client.reject``."""
        return await self._client.reject(self.id, step, call_id, text=text, by=by)

    async def answer(self, step: str, call_id: str, text: str, *, by: str = "") -> int:
        """Answer a question: see ``Client.answer``."""
        return await self._client.answer(self.id, step, call_id, text, by=by)

    async def retry(
        self, *, id: str | None = None, version: Version = "same", trace: TraceMode | None = None
    ) -> RunHandle:
        """Make a run that goes on where this one has failed: see ``Client.retry``."""
        return await self._client.retry(self.id, id=id, version=version, trace=trace)

    async def fork(
        self,
        *,
        from_step: str | None = None,
        iteration: int | None = None,
        input: object = UNSET,
        id: str | None = None,
        version: Version = "same",
        trace: TraceMode | None = None,
    ) -> RunHandle:
        """Make a run that starts again from a step of this one: see ``Client.fork``."""
        return await self._client.fork(
            self.id,
            from_step=from_step,
            iteration=iteration,
            input=input,
            id=id,
            version=version,
            trace=trace,
        )

    async def pause(self, reason: str = "") -> bool:
        """Start nothing more until the run is resumed: see ``Client.pause``."""
        return await self._client.pause(self.id, reason)

    async def resume(self, step: str | None = None, **raised: Unpack[Raised]) -> None:
        """End a pause, and move parked steps on: see ``Client.resume``."""
        await self._client.resume(self.id, step, **raised)
