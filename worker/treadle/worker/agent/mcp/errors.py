"""What goes wrong with an MCP server.

McpUnavailable      it cannot be reached: nothing was asked of it, so asking later is safe
McpConnectionLost   the connection ended under a call: whether it took effect is not known
"""

from __future__ import annotations

from treadle.sdk.errors import TreadleError, sentence


class McpUnavailable(TreadleError):
    """An MCP server that cannot be reached; nothing was asked of it."""

    def __init__(self, server: str, where: str, why: str) -> None:
        self.server = server
        super().__init__(
            f"MCP server {server!r} ({where}) cannot be used: {sentence(why)} See that it runs and "
            "answers; whatever needs it is tried again as its retry policy says."
        )


class McpConnectionLost(TreadleError):
    """The connection to an MCP server ended while a call was under way."""

    def __init__(self, server: str, where: str, why: str) -> None:
        self.server = server
        super().__init__(
            f"the connection to MCP server {server!r} ({where}) ended during the call: "
            f"{sentence(why)} The next call opens another one; this call is not made again."
        )


class Unsent(Exception):
    """A request that a connection did not send any more: another one may take it."""
