"""The client of a Treadle namespace: ``Client``, the handle of a run, and what they return."""

from treadle.sdk.client.answering import PendingAsk
from treadle.sdk.client.client import Client
from treadle.sdk.client.event import RunEvent
from treadle.sdk.client.explain.reason import Explanation, Reason
from treadle.sdk.client.handle import RunHandle
from treadle.sdk.client.listing import RunCounts, RunPage
from treadle.sdk.client.logs import LogLine
from treadle.sdk.client.many import Start, StartOutcome, StartReport
from treadle.sdk.client.notes import Note
from treadle.sdk.client.publishing import Published
from treadle.sdk.client.streaming import StreamItem
from treadle.sdk.client.timeline.span import Span, Timeline
from treadle.sdk.client.tracing import RunTrace
from treadle.sdk.client.transcript import Transcript
from treadle.sdk.client.trigger_view import TriggerView
from treadle.sdk.client.triggers import Triggers
from treadle.sdk.client.view import RunView, StepView
from treadle.sdk.triggers.trigger import Cron, Http, Subject, Webhook

__all__ = [
    "Client",
    "Cron",
    "Explanation",
    "Http",
    "LogLine",
    "Note",
    "PendingAsk",
    "Published",
    "Reason",
    "RunCounts",
    "RunEvent",
    "RunHandle",
    "RunPage",
    "RunTrace",
    "RunView",
    "Span",
    "Start",
    "StartOutcome",
    "StartReport",
    "StepView",
    "StreamItem",
    "Subject",
    "Timeline",
    "Transcript",
    "TriggerView",
    "Triggers",
    "Webhook",
]
