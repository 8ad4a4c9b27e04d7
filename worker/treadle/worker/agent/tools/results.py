"""What a tool may return beside a plain value, to say more about how the call ended."""

from __future__ import annotations

import msgspec

from treadle.worker.agent.core.calls import CallStatus, Effect
from treadle.worker.agent.core.conversation import Block


class Terminate(msgspec.Struct, frozen=True):
    """Returned by a tool: this is the result, and the turn should be the last."""

    result: object = None


class Content(msgspec.Struct, frozen=True):
    """Returned by a tool: content blocks, passed on as they are; texts are capped.

    For images and documents, in the shape of the Messages API.
    """

    blocks: list[Block]


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by a tool that knows itself how its call ended, as a shell does."""

    result: object
    status: CallStatus
    error_type: str = ""
    effect: Effect | None = None
    """``None``: what the status and the tool's idempotency say."""
