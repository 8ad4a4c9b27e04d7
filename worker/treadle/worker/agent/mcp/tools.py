"""From the list of an MCP server to tools: their names, what may be repeated, who has to agree."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mcp import MCPError
from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_types import Tool as Listed

from treadle.sdk.errors import Problem
from treadle.worker.agent.core.calls import Effect
from treadle.worker.agent.mcp.errors import McpConnectionLost, McpUnavailable
from treadle.worker.agent.mcp.results import to_result
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import did_you_mean, tool_from_schema
from treadle.worker.agent.tools.errors import InvalidTool, TransientToolError
from treadle.worker.agent.tools.results import Ended
from treadle.worker.agent.tools.tool import NAME_PATTERN, AnyTool

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_-]")


def to_tools(server: McpServer, listed: Sequence[Listed]) -> list[AnyTool]:
    """Return the tools that are offered; raise ``InvalidTool`` naming every fault."""
    names = {each.name for each in listed}
    problems = [
        Problem(
            f"MCP server {server.name!r}",
            f"{option} names {name!r}, and it has no such tool.{did_you_mean(name, names)} "
            f"It has: {', '.join(sorted(names)) or 'none'}",
        )
        for option, chosen in (
            ("tools", server.tools or ()),
            ("read_only", server.read_only),
            ("idempotent", server.idempotent),
            ("requires_approval", server.needs_approval),
        )
        for name in sorted(chosen)
        if name not in names
    ]
    made: dict[str, AnyTool] = {}
    for each in listed:
        if server.tools is not None and each.name not in server.tools:
            continue
        name = f"{server.name}__{_NOT_ALLOWED.sub('_', each.name)}"
        where = f"tool {each.name!r} of MCP server {server.name!r}"
        if name in made or not NAME_PATTERN.match(name):
            problems.append(
                Problem(
                    where,
                    f"it would be offered as {name!r}, which "
                    + ("another tool is, too" if name in made else "is longer than 64 characters")
                    + ". Leave it out with tools=, or give the server another name",
                )
            )
            continue
        try:
            made[name] = _tool(server, name, each)
        except InvalidTool as exc:
            problems += [Problem(where, problem.text) for problem in exc.problems]
    if problems:
        raise InvalidTool(problems)
    return list(made.values())


def _tool(server: McpServer, name: str, listed: Listed) -> AnyTool:
    read_only = listed.name in server.read_only
    idempotent = listed.name in server.idempotent
    hints = listed.annotations
    if server.trust_annotations and hints is not None:
        read_only |= bool(hints.read_only_hint)
        idempotent |= bool(hints.idempotent_hint)
    repeatable = read_only or idempotent

    async def call(ctx: ToolContext[Any], arguments: dict[str, Any]) -> object:
        return await _call(server, listed.name, ctx, arguments, idempotent=repeatable)

    return tool_from_schema(
        name,
        listed.description or listed.title or "",
        listed.input_schema,
        call,
        idempotent=idempotent,
        read_only=read_only,
        timeout=server.timeout_s,
        requires_approval=server.approves_all or listed.name in server.needs_approval,
        max_output=server.output_bytes_max,
    )


async def _call(
    server: McpServer,
    name: str,
    ctx: ToolContext[Any],
    arguments: dict[str, Any],
    *,
    idempotent: bool,
) -> object:
    async def progressed(progress: float, total: float | None, message: str | None) -> None:
        ctx.heartbeat()
        ctx.report({"progress": progress, "total": total, "message": message})

    try:
        result = await server.link().ask(
            lambda client: client.call_tool(name, arguments, progress_callback=progressed)
        )
    except (McpUnavailable, McpConnectionLost) as exc:
        if idempotent:
            raise TransientToolError(str(exc)) from exc
        if isinstance(exc, McpUnavailable):
            return _error(str(exc), "mcp_unavailable", "none")
        return _error(str(exc), "mcp_connection_lost", "unknown")
    except MCPError as exc:
        text = f"MCP server {server.name!r} answered with error {exc.code}: {exc.message}"
        refused = exc.code in (INVALID_PARAMS, METHOD_NOT_FOUND)
        return _error(text, "mcp", "none" if refused else None)
    return to_result(result)


def _error(text: str, error_type: str, effect: Effect | None) -> Ended:
    return Ended(result=text, status="error", error_type=error_type, effect=effect)
