"""The Messages API as a test double: a strict loopback server with a script.

    with FakeAnthropic([turn(tool_use("search", {"q": "x"})), turn(text("done"))]) as fake:
        ...                                  # point any client at fake.base_url

It refuses what the API refuses, streams as the API streams, breaks where the script says, and
records what it was asked. It needs no other package, and no client library in particular.

Read next: ``fake`` (the server as tests see it), ``script`` (turns), ``rules`` (what is refused),
``usage`` (how tokens are counted).
"""

from treadle.worker.agent.testing.blocks import (
    Block,
    block,
    malformed_tool_use,
    redacted_thinking,
    text,
    thinking,
    tool_use,
)
from treadle.worker.agent.testing.fake import FakeAnthropic
from treadle.worker.agent.testing.gate import Gate
from treadle.worker.agent.testing.journal import RecordedRequest
from treadle.worker.agent.testing.script import (
    Turn,
    cut_after,
    error,
    error_after,
    hang_up,
    no_message_stop,
    raw_sse,
    stall_after,
    turn,
)

__all__ = [
    "Block",
    "FakeAnthropic",
    "Gate",
    "RecordedRequest",
    "Turn",
    "block",
    "cut_after",
    "error",
    "error_after",
    "hang_up",
    "malformed_tool_use",
    "no_message_stop",
    "raw_sse",
    "redacted_thinking",
    "stall_after",
    "text",
    "thinking",
    "tool_use",
    "turn",
]
