"""An MCP server as an agent names it: how to reach it, and what its tools may do."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.worker.agent.tools.tool import MAX_OUTPUT_BYTES, TIMEOUT_S_MAX

if TYPE_CHECKING:
    from treadle.worker.agent.mcp.link import Link

CALL_TIMEOUT_S = 120.0
"""Twice that of an own tool: a server often calls a service of its own."""
INIT_TIMEOUT_S = 10.0
"""To start, shake hands and list the tools."""


class McpServer:
    """A server whose tools an agent is offered, each as ``NAME__TOOL``.

    It is connected to when a turn first needs it: once per process and event loop, shared by all
    runs and all agents that name this object.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        url: str = "",
        headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        tools: Sequence[str] | None = None,
        read_only: Sequence[str] = (),
        idempotent: Sequence[str] = (),
        trust_annotations: bool = False,
        requires_approval: bool | Sequence[str] = False,
        timeout: float = CALL_TIMEOUT_S,
        init_timeout: float = INIT_TIMEOUT_S,
        max_output: int = MAX_OUTPUT_BYTES,
    ) -> None:
        """Name a server; raise ``UserError`` naming every fault.

        Either ``command`` (with ``env`` and ``cwd``), which is started and spoken to over its
        standard streams, or ``url`` (with ``headers``, or a function that returns them for each
        connection), which speaks streamable HTTP. ``tools`` are those that are offered, by their
        names at the server (default: all). ``read_only`` are those that change nothing,
        ``idempotent`` those of which a second call does no harm; with ``trust_annotations`` the
        server's own word counts, too. ``requires_approval`` names the tools whose calls people
        have to agree to, or is true for all. ``timeout`` is of a call and ``init_timeout`` of the
        connection, in seconds; ``max_output`` of a result, in bytes.
        """
        self.name = check_id("name of an MCP server", name)
        self.command = tuple(command)
        self.env = dict(env or {})
        self.cwd = cwd
        self.url = url
        self.headers = headers
        self.tools = None if tools is None else tuple(tools)
        self.read_only = frozenset(read_only)
        self.idempotent = frozenset(idempotent)
        self.trust_annotations = trust_annotations
        self.approves_all = requires_approval is True
        self.needs_approval = frozenset(
            () if isinstance(requires_approval, bool) else requires_approval
        )
        self.timeout_s = float(timeout)
        self.init_timeout_s = float(init_timeout)
        self.output_bytes_max = max_output
        self._links: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Link] = (
            weakref.WeakKeyDictionary()
        )
        texts = (command, read_only, idempotent, requires_approval, tools)
        problems = [*self._problems(), *(_TEXT for value in texts if isinstance(value, str))]
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise UserError(f"MCP server {name!r} cannot be used as it is given:\n{listed}")

    @property
    def where(self) -> str:
        """The command or the address, for people."""
        return self.url or " ".join(self.command)

    def link(self) -> Link:
        """Return the link of the running event loop; raise ``UserError`` without the extra."""
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is None:
            try:
                from treadle.worker.agent.mcp.link import Link
            except ModuleNotFoundError as exc:
                raise UserError(
                    f"MCP server {self.name!r} cannot be used: the package {exc.name!r} is not "
                    "installed, because it belongs to an optional extra. Install it: "
                    "pip install 'treadle[mcp]'."
                ) from exc
            link = self._links[loop] = Link(self)
        return link

    async def close(self) -> None:
        """End what this event loop has open to the server; a later call connects again."""
        link = self._links.get(asyncio.get_running_loop())
        if link is not None:
            await link.close()

    def _problems(self) -> list[str]:
        problems: list[str] = []
        if bool(self.command) == bool(self.url):
            given = "both" if self.url else "neither"
            problems.append(f"it has {given} of command and url; give one of them")
        if self.url and not self.url.startswith(("http://", "https://")):
            problems.append(f"url {self.url!r} is no http:// or https:// address")
        if self.url and (self.env or self.cwd):
            problems.append("env and cwd are for a command, and it has a url; leave them out")
        if self.command and self.headers is not None:
            problems.append("headers are for a url, and it has a command; leave them out")
        for option, value in (("timeout", self.timeout_s), ("init_timeout", self.init_timeout_s)):
            if not 0 < value <= TIMEOUT_S_MAX:
                problems.append(
                    f"{option} is {value} s; it must be above 0, up to {TIMEOUT_S_MAX:.0f}"
                )
        if self.tools is not None:
            named = {
                "read_only": self.read_only,
                "idempotent": self.idempotent,
                "requires_approval": self.needs_approval,
            }
            for option, names in named.items():
                if strange := sorted(names.difference(self.tools)):
                    problems.append(f"{option} names {', '.join(strange)}, which tools leaves out")
        return problems


_TEXT = "command, tools, read_only, idempotent, requires_approval: lists, and one is a text"
