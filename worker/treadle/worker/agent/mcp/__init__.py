"""Tools of MCP servers, offered to an agent beside its own.

    Agent ── Toolbox ── McpServer ── Link ── Connection      one owner task enters and leaves it
                          (as data)  (per event loop)

Connecting needs the extra ``treadle[mcp]``; declaring a server does not.
"""

from treadle.worker.agent.mcp.errors import McpConnectionLost, McpUnavailable
from treadle.worker.agent.mcp.server import McpServer

__all__ = ["McpConnectionLost", "McpServer", "McpUnavailable"]
