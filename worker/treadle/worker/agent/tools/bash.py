"""A shell as a tool: bounded, never interactive, its observation in one JSON envelope.

    {"schema": "treadle.tool_observation.v1", "tool", "call_id", "command", "workdir", "status",
     "exit_code", "timed_out", "duration_ms", "output", "truncated_bytes"}

``status`` is ``ok``, ``error`` (exit code above 0), ``timeout``, ``output_limit`` or ``refused``.
"""

from __future__ import annotations

import codecs
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import Field

from treadle.sdk.errors import Problem, clause
from treadle.worker.agent.core.calls import CallStatus
from treadle.worker.agent.tools.canonical import well_formed
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import make_tool
from treadle.worker.agent.tools.errors import InvalidTool
from treadle.worker.agent.tools.interactive import why_interactive
from treadle.worker.agent.tools.process_group import OUTPUT_BYTES_STOP, Ran, run_command
from treadle.worker.agent.tools.results import Ended
from treadle.worker.agent.tools.tool import (
    MAX_OUTPUT_BYTES,
    OUTPUT_BYTES_MAX,
    OUTPUT_BYTES_MIN,
    AnyTool,
    Args,
)

SCHEMA = "treadle.tool_observation.v1"
BASH_TIMEOUT_S = 60
BASH_TIMEOUT_S_MAX = 600
COMMAND_CHARS_SHOWN = 2_000
"""Of the command, in the observation: the model has it in its call."""
_ENVELOPE_BYTES = 4 * COMMAND_CHARS_SHOWN + 6_000
"""Room for everything but the output: the command as UTF-8, the directory, the fields."""
_GRACE_S = 30
"""The tool ends a command itself; its own timeout is for what goes wrong there."""

CommandPolicy = Callable[[str], str | None]

_QUIET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": "true",
    "DEBIAN_FRONTEND": "noninteractive",
}
"""Keeps programs from asking, paging and painting."""


_ENDS: dict[str, tuple[CallStatus, str]] = {
    "ok": ("ok", ""),
    "error": ("error", "exit_code"),
    "timeout": ("timeout", "timeout"),
    "output_limit": ("error", "output_limit"),
}
"""Status and error type of the call, by the status of the command."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a command."""

    schema: str = SCHEMA
    tool: str
    call_id: str
    command: str
    workdir: str
    status: str
    exit_code: int | None = None
    timed_out: bool = False
    duration_ms: int = 0
    output: str = ""
    truncated_bytes: int = 0
    """Bytes of the output that are left out."""


def bash_tool(
    *,
    name: str = "bash",
    workdir: str | os.PathLike[str] | None = None,
    timeout: float | timedelta = BASH_TIMEOUT_S,
    max_output: int = MAX_OUTPUT_BYTES,
    policy: CommandPolicy | None = None,
    env: Mapping[str, str] | None = None,
    requires_approval: bool | Callable[[Args], bool] = False,
) -> AnyTool:
    """Return a tool that runs commands in ``bash -c``.

    ``timeout`` is of a command whose call does not say, in seconds, up to 600. ``policy`` gets
    each command and returns why it must not run, or ``None``. ``env`` replaces the environment
    of the worker, which commands otherwise inherit, with all its secrets.
    """
    default_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    _check(name, default_s, max_output)
    shell = _Shell(name, workdir, default_s, max_output, policy, env)
    made = make_tool(
        shell.run,
        name=name,
        description=(
            f"Run a command in bash and return what it writes. It gets {default_s:g} s unless "
            f"timeout_s says otherwise, at most {BASH_TIMEOUT_S_MAX}. Its input is closed: "
            "nothing can be typed, so do not start editors, pagers or other interactive programs. "
            "Every call starts a new shell in the same directory, and background processes end "
            "with it."
        ),
        timeout=BASH_TIMEOUT_S_MAX + _GRACE_S,
        max_output=OUTPUT_BYTES_MAX,
        requires_approval=requires_approval,
    )
    return dataclasses.replace(made, is_shell=True)


def _check(name: str, timeout_s: float, max_output: int) -> None:
    problems: list[Problem] = []
    most = (OUTPUT_BYTES_MAX - _ENVELOPE_BYTES) // 2
    if not 0 < timeout_s <= BASH_TIMEOUT_S_MAX:
        problems.append(
            Problem(
                f"tool {name!r}",
                f"timeout is {timeout_s:g} s; a command gets at most {BASH_TIMEOUT_S_MAX}",
            )
        )
    if not OUTPUT_BYTES_MIN <= max_output <= most:
        problems.append(
            Problem(
                f"tool {name!r}",
                f"max_output is {max_output} bytes; it must be {OUTPUT_BYTES_MIN} to {most}",
            )
        )
    if problems:
        raise InvalidTool(problems)


class _Shell:
    def __init__(
        self,
        name: str,
        workdir: str | os.PathLike[str] | None,
        timeout_s: float,
        output_bytes_max: int,
        policy: CommandPolicy | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._name = name
        self._workdir = None if workdir is None else os.fspath(workdir)
        self._timeout_s = timeout_s
        self._output_bytes_max = output_bytes_max
        self._policy = policy
        self._env = env

    async def run(
        self,
        ctx: ToolContext[Any],
        command: Annotated[str, Field(description="The command, as one would type it.")],
        timeout_s: Annotated[
            float | None,
            Field(gt=0, le=BASH_TIMEOUT_S_MAX, description="Seconds the command may take."),
        ] = None,
    ) -> Ended:
        """Run one command."""
        workdir = self._workdir or str(Path.cwd())
        start = Observation(
            tool=self._name,
            call_id=ctx.call_id,
            command=well_formed(command[:COMMAND_CHARS_SHOWN]),
            workdir=workdir,
            status="refused",
        )
        if why := self._objection(command):
            return _ended(msgspec.structs.replace(start, output=why), "refused", "refused")
        began_s = time.monotonic()
        ran = await run_command(
            command,
            cwd=workdir,
            env={**(os.environ if self._env is None else self._env), **_QUIET},
            timeout_s=timeout_s or self._timeout_s,
            output_bytes_max=self._output_bytes_max,
        )
        duration_ms = round((time.monotonic() - began_s) * 1000)
        return self._observed(msgspec.structs.replace(start, duration_ms=duration_ms), ran)

    def _objection(self, command: str) -> str:
        """Return why the command must not run, or ''."""
        if not command.strip():
            return "The command is empty, so nothing ran. Give the command to run."
        if "\0" in command:
            return "The command holds a NUL character, which no shell takes. Leave it out."
        if why := why_interactive(command):
            return f"Nothing ran: there is no terminal here, and {clause(why)}."
        if self._policy is None:
            return ""
        try:
            objection = self._policy(command)
        except Exception as exc:  # noqa: BLE001 — a user's policy may raise anything
            return f"Nothing ran: the policy about commands failed ({type(exc).__name__})."
        return f"Nothing ran: {objection}" if objection else ""

    def _observed(self, start: Observation, ran: Ran) -> Ended:
        status = ran.status if ran.status != "ended" else "error" if ran.exit_code else "ok"
        output, left_out = _output(ran, self._output_bytes_max)
        if ran.status == "output_limit":
            output += f"\n(killed: it wrote more than {OUTPUT_BYTES_STOP} bytes)"
        observation = msgspec.structs.replace(
            start,
            status=status,
            exit_code=ran.exit_code,
            timed_out=ran.status == "timeout",
            output=output or "(no output)",
            truncated_bytes=left_out,
        )
        return _ended(observation, *_ENDS[status])


def _ended(observation: Observation, status: CallStatus, error_type: str) -> Ended:
    # As text: the envelope is what the model sees, not a value to be encoded once more.
    return Ended(
        result=msgspec.json.encode(observation).decode(), status=status, error_type=error_type
    )


def _output(ran: Ran, bytes_max: int) -> tuple[str, int]:
    """Return the output within the bound, also as JSON text, and how many bytes are left out."""
    while True:
        half = bytes_max // 2
        whole = ran.head + ran.tail
        if ran.total_bytes <= bytes_max:
            text, left_out = _text(whole), 0
        else:
            head, tail = ran.head[:half], ran.tail[-half:]
            left_out = ran.total_bytes - len(head) - len(tail)
            notice = f"\n[... {left_out} bytes left out ...]\n"
            text = f"{_text(head, is_head=True)}{notice}{_text(tail, is_tail=True)}"
        # Control characters take up to six bytes each in JSON.
        if len(msgspec.json.encode(text)) <= OUTPUT_BYTES_MAX - _ENVELOPE_BYTES:
            return text, left_out
        bytes_max //= 2


def _text(raw: bytes, *, is_head: bool = False, is_tail: bool = False) -> str:
    """Decode; a character that was cut through at the end of a head or a tail's start is left."""
    if is_tail:
        start = next((i for i, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
        raw = raw[start:]
    # An unfinished decoder keeps the beginning of a character to itself.
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(raw, final=not is_head)
    return text.replace("\0", "\ufffd")
