"""The tools of all the MCP servers of an agent, asked for at each turn and listed when needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.sdk.errors import Problem, UserError
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.tools.errors import InvalidTool
from treadle.worker.agent.tools.tool import AnyTool

if TYPE_CHECKING:
    from mcp_types import Tool as Listed


class Toolbox:
    """The servers of one agent, and the tools they offered last."""

    def __init__(self, servers: Sequence[McpServer]) -> None:
        names = [server.name for server in servers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(
                f"{len(names)} MCP servers share the name{'s' if len(twice) > 1 else ''} "
                f"{', '.join(twice)}, and their tools could not be told apart. Rename them."
            )
        self._servers = tuple(servers)
        self._lists: list[tuple[Listed, ...]] = []
        self._tools: Mapping[str, AnyTool] = {}

    def __bool__(self) -> bool:
        return bool(self._servers)

    async def tools(self, taken: Sequence[str]) -> Mapping[str, AnyTool]:
        """Return the tools by name: the same object as long as the lists are the same.

        ``taken`` are the names of the agent's other tools. Raise ``McpUnavailable`` if a server
        cannot be reached, ``InvalidTool`` if what it offers cannot be used.
        """
        found = await asyncio.gather(
            *(server.link().tools() for server in self._servers), return_exceptions=True
        )
        lists: list[tuple[Listed, ...]] = []
        for each in found:
            if isinstance(each, BaseException):
                raise each
            lists.append(each)
        if self._lists != lists:
            from treadle.worker.agent.mcp.tools import to_tools

            made = [
                tool
                for server, listed in zip(self._servers, lists, strict=True)
                for tool in to_tools(server, listed)
            ]
            if clash := sorted(tool.name for tool in made if tool.name in taken):
                text = "the agent has an own tool of this name. Rename it, or the MCP server"
                raise InvalidTool([Problem(f"tool {name!r}", text) for name in clash])
            self._tools = {tool.name: tool for tool in made}
            self._lists = lists
        return self._tools

    async def close(self) -> None:
        """End what this event loop has open to the servers."""
        await asyncio.gather(*(server.close() for server in self._servers))
