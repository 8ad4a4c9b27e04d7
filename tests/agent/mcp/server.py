"""An MCP server made with the ``mcp`` library, for the tests: ``server.py stdio|http DIRECTORY``.

It writes its pid to ``pids`` in the directory and what it has done to ``log``. Over HTTP it takes
the port of MCP_PORT. Its tools change with the file ``extra``; with MCP_DEAF it does not end when
its input does; with MCP_CHILD it leaves a child behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel

DIRECTORY = Path(sys.argv[2])
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000002000001e221bc330000000049454e44ae426082"
)

server = MCPServer("shop")


class Stock(BaseModel):
    sku: str
    left: int


def log(line: str) -> None:
    with (DIRECTORY / "log").open("a") as file:
        file.write(f"{line}\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look_up(sku: str) -> Stock:
    """Look an article up."""
    log(f"look_up {sku}")
    return Stock(sku=sku, left=3)


@server.tool()
async def order(sku: str) -> str:
    """Order an article."""
    log(f"order {sku}")
    return f"ordered {sku}"


@server.tool()
async def wait(ctx: Context) -> str:
    """Wait until somebody has had enough."""
    log("wait began")
    await ctx.report_progress(1, 2, "waiting")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        log("wait cancelled")
        raise
    return "waited"


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("out of order")


@server.tool()
def refuse() -> str:
    """Answer with an error of the protocol, of the code that servers use for their own."""
    raise MCPError(-32000, "no such shop")


@server.tool()
def picture() -> Image:
    """Show a picture."""
    return Image(data=PIXEL, format="png")


@server.tool()
def long() -> str:
    """Say much."""
    return "x" * 100_000


@server.tool()
def die() -> str:
    """End the server in the middle of the call."""
    log("die")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@server.tool()
def grow(ctx: Context) -> str:
    """Get one tool more."""
    server.add_tool(extra, name="extra")
    return "grown"


def extra() -> str:
    """A tool that was not there before."""
    return "more"


def main() -> None:
    with (DIRECTORY / "pids").open("a") as file:
        file.write(f"{os.getpid()}\n")
    if (DIRECTORY / "extra").exists():
        server.add_tool(extra, name="extra")
    if os.environ.get("MCP_CHILD"):
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        with (DIRECTORY / "pids").open("a") as file:
            file.write(f"{child.pid}\n")
    if sys.argv[1] == "http":
        port = int(os.environ["MCP_PORT"])
        server.run("streamable-http", host="127.0.0.1", port=port)
    else:
        server.run("stdio")
    if os.environ.get("MCP_DEAF"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1)


if __name__ == "__main__":
    main()
