"""From a proposed ``tool_use`` block to a checked call, or a reason the model can act on. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.conversation import Block
from treadle.worker.agent.tools.arguments import ArgumentFaults, Fault
from treadle.worker.agent.tools.canonical import args_hash, well_formed, well_formed_json
from treadle.worker.agent.tools.declaring import did_you_mean
from treadle.worker.agent.tools.repair import parse_object, repair
from treadle.worker.agent.tools.tool import AnyTool

FAULTS_SHOWN = 20
"""A model that gets more than these wrong gains nothing from the rest."""
VALUE_CHARS_SHOWN = 80
SCHEMA_CHARS_SHOWN = 6_000
"""A longer schema stands in the request anyway; beside the faults it would only cost tokens."""


def check_call(block: Block, tools: Mapping[str, AnyTool]) -> ToolCall:
    """Return the call with decision ``execute``, or ``invalid`` and the reason for the model.

    Its ``input`` is what will be executed: texts well formed, small mistakes mended.
    """
    name = well_formed(str(block.get("name", "")))
    proposed, problem = _object(block.get("input"))
    call = ToolCall(
        id=str(block.get("id", "")),
        name=name,
        input=proposed or {},
        args_hash=_hash(block.get("input") if proposed is None else proposed),
    )
    if (tool := tools.get(name)) is None:
        return _invalid(call, _unknown(name, tools))
    if proposed is None:
        return _invalid(call, _misfit(tool, [problem]))
    return check_arguments(call, tool)


def check_arguments(call: ToolCall, tool: AnyTool) -> ToolCall:
    """Return the call checked against the tool's schema: validate, repair, validate once more.

    For arguments that come from somewhere else than a model as well, such as an approver.
    """
    try:
        tool.bind(call.input)
        return call
    except ArgumentFaults as exc:
        faults = exc.faults
    mended = repair(call.input, faults)
    if mended.repairs:
        try:
            clean = well_formed_json(mended.arguments)
            tool.bind(clean)
            repaired = {"input": clean, "args_hash": args_hash(clean), "repairs": mended.repairs}
            return msgspec.structs.replace(call, **repaired)
        except (ArgumentFaults, ValueError):
            pass  # The model is told what is wrong with what it sent.
    return _invalid(call, _misfit(tool, [_line(fault) for fault in faults]))


def check_calls(blocks: Iterable[Block], tools: Mapping[str, AnyTool]) -> tuple[ToolCall, ...]:
    """Return the calls of one answer, checked, in its order.

    A call with the id, the tool and the arguments of an earlier one is ``duplicate``.
    """
    calls: list[ToolCall] = []
    seen: set[tuple[str, str, str]] = set()
    for block in blocks:
        call = check_call(block, tools)
        identity = (call.id, call.name, call.args_hash)
        if identity in seen:
            call = msgspec.structs.replace(
                call,
                decision="duplicate",
                reason="This call was sent twice in one answer; it ran once. See its result.",
            )
        seen.add(identity)
        calls.append(call)
    return tuple(calls)


def _object(proposed: object) -> tuple[dict[str, Any] | None, str]:
    """Return the arguments as an object of well-formed JSON, or ``None`` and what is wrong."""
    if isinstance(proposed, str):
        proposed = parse_object(proposed) if proposed.strip() else {}
    if proposed is None:
        proposed = {}
    if not isinstance(proposed, dict):
        return None, "the arguments: Input should be one JSON object"
    try:
        clean = cast("dict[str, Any]", well_formed_json(cast("object", proposed)))
        args_hash(clean)
    except ValueError as exc:
        return None, f"the arguments: {exc}"
    return clean, ""


def _hash(proposed: object) -> str:
    try:
        return args_hash(proposed)
    except ValueError:
        # Not JSON, but equal mistakes must be seen to be equal.
        return hashlib.sha256(ascii(proposed).encode()).hexdigest()


def _invalid(call: ToolCall, reason: str) -> ToolCall:
    return msgspec.structs.replace(call, decision="invalid", reason=reason)


def _unknown(name: str, tools: Mapping[str, AnyTool]) -> str:
    shown = name if len(name) <= VALUE_CHARS_SHOWN else f"{name[:VALUE_CHARS_SHOWN]}…"
    known = ", ".join(sorted(tools)) or "none"
    return f"There is no tool {shown!r}, so nothing ran.{did_you_mean(name, tools)} Tools: {known}."


def _misfit(tool: AnyTool, lines: list[str]) -> str:
    listed = "\n".join(f"- {line}" for line in lines[:FAULTS_SHOWN])
    more = f"\n- and {len(lines) - FAULTS_SHOWN} more" if len(lines) > FAULTS_SHOWN else ""
    schema = json.dumps(tool.input_schema, ensure_ascii=False, separators=(",", ":"))
    shown = f"\nIts schema: {schema}" if len(schema) <= SCHEMA_CHARS_SHOWN else ""
    return (
        f"{tool.name} did not run: its arguments do not fit its schema.\n{listed}{more}{shown}\n"
        "Call it again with arguments that fit."
    )


def _line(fault: Fault) -> str:
    path = ".".join(map(str, fault.path)) or "the arguments"
    if fault.kind in ("missing", "extra_forbidden"):
        return f"{path}: {fault.text}"
    shown = json.dumps(fault.value, ensure_ascii=False, default=lambda v: type(v).__name__)
    if len(shown) > VALUE_CHARS_SHOWN:
        shown = f"{shown[:VALUE_CHARS_SHOWN]}…"
    return f"{path}: {fault.text}, not {shown}"
