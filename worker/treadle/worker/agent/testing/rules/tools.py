"""Tools on offer, and the choice among them."""

from __future__ import annotations

import re

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft
from treadle.worker.agent.testing.wire import Json, as_list, as_object, objects

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
TOOL_FIELDS = frozenset(
    {
        "allowed_callers",
        "cache_control",
        "defer_loading",
        "description",
        "eager_input_streaming",
        "input_examples",
        "input_schema",
        "name",
        "strict",
        "type",
    }
)


def check_tools(draft: Draft) -> None:
    """Refuse tools that are malformed, and two of one name."""
    names: set[str] = set()
    for i, item in enumerate(as_list(draft.body.get("tools")) or []):
        tool = as_object(item)
        if tool is None:
            raise Refused(f"tools.{i}: Input should be a valid dictionary")
        if tool.get("type", "custom") in (None, "custom"):
            _check_tool(f"tools.{i}.custom", tool)
        if tool.get("name") in names:
            raise Refused("tools: Tool names must be unique.")
        names.add(str(tool.get("name")))


def _check_tool(path: str, tool: Json) -> None:
    for name in ("name", "input_schema"):
        if name not in tool:
            raise Refused(f"{path}.{name}: Field required")
    for name in tool:
        if name not in TOOL_FIELDS:
            raise Refused(f"{path}.{name}: Extra inputs are not permitted")
    if not isinstance(tool["name"], str) or not re.fullmatch(TOOL_NAME, tool["name"]):
        raise Refused(f"{path}.name: String should match pattern '{TOOL_NAME}'")
    schema = as_object(tool["input_schema"])
    if schema is None:
        raise Refused(f"{path}.input_schema: Input should be a valid dictionary")
    if "type" not in schema:
        raise Refused(f"{path}.input_schema.type: Field required")
    if schema["type"] != "object":
        raise Refused(f"{path}.input_schema.type: Input should be 'object'")
    if not schema.keys().isdisjoint({"oneOf", "allOf", "anyOf"}):
        raise Refused(
            f"{path}.input_schema: input_schema does not support oneOf, allOf, or anyOf at the "
            "top level"
        )


def check_tool_choice(draft: Draft) -> None:
    """Refuse a choice that cannot be made, and a forced one together with thinking."""
    choice = as_object(draft.body.get("tool_choice"))
    if choice is None:
        return
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise Refused(
            f"tool_choice: Input tag '{kind}' found using 'type' does not match any of the "
            "expected tags: 'auto', 'any', 'tool', 'none'"
        )
    tools = objects(draft.body.get("tools"))
    if not tools:
        raise Refused("tool_choice: tool_choice may only be specified while providing tools")
    if kind == "tool":
        name = choice.get("name")
        if not isinstance(name, str):
            raise Refused("tool_choice.tool.name: Field required")
        if name not in {tool.get("name") for tool in tools}:
            raise Refused(f"Tool '{name}' not found in provided tools")
    if kind in ("any", "tool") and draft.is_thinking:
        raise Refused("Thinking may not be enabled when tool_choice forces tool use.")
