"""Messages and their blocks: roles, shapes, and nothing empty.

Consecutive messages of one role are taken as one, as the API's reference says they are;
``Limits.merge_roles=False`` refuses them, for clients that mean to alternate.
"""

from __future__ import annotations

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft, Placed
from treadle.worker.agent.testing.wire import (
    Json,
    as_list,
    as_object,
    blocks_of,
    objects,
)

OPTIONAL_FIELDS = {
    "text": {"cache_control", "citations"},
    "image": {"cache_control", "transformations"},
    "document": {"cache_control", "citations", "context", "title"},
    "thinking": set[str](),
    "redacted_thinking": set[str](),
    "tool_use": {"cache_control", "caller", "toolset_name"},
    "tool_result": {"cache_control", "content", "is_error", "toolset_name"},
}
REQUIRED_FIELDS = {
    "text": {"text"},
    "image": {"source"},
    "document": {"source"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "input", "name"},
    "tool_result": {"tool_use_id"},
}
OTHER_KINDS = frozenset(
    {
        "bash_code_execution_tool_result",
        "code_execution_tool_result",
        "container_upload",
        "search_result",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
"""Blocks of server tools: taken as they are."""

RESULT_KINDS = frozenset({"text", "image", "document", "search_result", "tool_reference"})
"""What a tool result may hold."""


def check_messages(draft: Draft) -> None:
    """Refuse wrong roles, a wrong beginning, and content that is no list of blocks."""
    messages = as_list(draft.body["messages"]) or []
    if not messages:
        raise Refused("messages: at least one message is required")
    previous = ""
    for i, item in enumerate(messages):
        message = as_object(item)
        if message is None:
            raise Refused(f"messages.{i}: Input should be a valid dictionary")
        _check_message(f"messages.{i}", message)
        if i == 0 and message["role"] != "user":
            raise Refused('messages: first message must use the "user" role')
        if message["role"] == previous and not draft.limits.merge_roles:
            raise Refused(
                'messages: roles must alternate between "user" and "assistant", but found '
                f'multiple "{previous}" roles in a row'
            )
        previous = message["role"]


def _check_message(path: str, message: Json) -> None:
    for name in ("role", "content"):
        if name not in message:
            raise Refused(f"{path}.{name}: Field required")
    for name in message:
        if name not in ("role", "content"):
            raise Refused(f"{path}.{name}: Extra inputs are not permitted")
    if message["role"] == "system":
        raise Refused(
            'messages: Unexpected role "system". The Messages API accepts a top-level `system` '
            'parameter, not "system" as an input message role.'
        )
    if message["role"] not in ("user", "assistant"):
        raise Refused(f"{path}.role: Input should be 'user' or 'assistant'")
    content = message["content"]
    if isinstance(content, str):
        return
    if as_list(content) is None:
        raise Refused(f"{path}.content: Input should be a valid list")
    for i, item in enumerate(as_list(content) or []):
        block = as_object(item)
        if block is None:
            raise Refused(f"{path}.content.{i}: Input should be a valid dictionary")
        _check_shape(f"{path}.content.{i}", block)


def _check_shape(path: str, block: Json) -> None:
    kind = str(block.get("type"))
    if kind in OTHER_KINDS:
        return
    if kind not in REQUIRED_FIELDS:
        tags = ", ".join(f"'{each}'" for each in sorted({*REQUIRED_FIELDS, *OTHER_KINDS}))
        raise Refused(
            f"{path}: Input tag '{kind}' found using 'type' does not match any of the expected "
            f"tags: {tags}"
        )
    required = REQUIRED_FIELDS[kind]
    for name in sorted(required):
        # Thinking without its signature is looked at by the rules of reasoning.
        if name not in block and name != "signature":
            raise Refused(f"{path}.{kind}.{name}: Field required")
    for name in block:
        if name not in required | OPTIONAL_FIELDS[kind] | {"type"}:
            raise Refused(f"{path}.{kind}.{name}: Extra inputs are not permitted")
    for name in required - {"input", "source"}:
        if name in block and not isinstance(block[name], str):
            raise Refused(f"{path}.{kind}.{name}: Input should be a valid string")
    if kind == "tool_use" and as_object(block["input"]) is None:
        raise Refused(f"{path}.tool_use.input: Input should be a valid dictionary")
    if kind == "tool_result":
        _check_result(f"{path}.tool_result", block)


def _check_result(path: str, block: Json) -> None:
    content = block.get("content", "")
    if not isinstance(content, str) and as_list(content) is None:
        raise Refused(f"{path}.content: Input should be a valid list")
    for i, inner in enumerate(objects(content)):
        kind = str(inner.get("type"))
        if kind not in RESULT_KINDS:
            raise Refused(
                f"{path}.content.{i}: Input tag '{kind}' found using 'type' does not match any "
                f"of the expected tags: {', '.join(repr(each) for each in sorted(RESULT_KINDS))}"
            )
    if block.get("is_error") and not content:
        raise Refused(f"{path}: content cannot be empty if `is_error` is true")


def check_content(draft: Draft) -> None:
    """Refuse empty content, empty and blank text, and blocks on the wrong side."""
    _check_empty(draft)
    for spoken in draft.conversation:
        for placed in spoken.blocks:
            _check_side(spoken.role, placed)
            _check_text("messages", placed.block)
            for inner in objects(placed.block.get("content")):
                _check_text("messages", inner)
    for block in blocks_of(draft.body.get("system")):
        _check_text("system", block)
    _check_last(draft)


def _check_empty(draft: Draft) -> None:
    messages = objects(draft.body["messages"])
    for i, message in enumerate(messages):
        is_final_assistant = message["role"] == "assistant" and i == len(messages) - 1
        if not message["content"] and not is_final_assistant:
            raise Refused(
                f"messages.{i}: all messages must have non-empty content except for the "
                "optional final assistant message"
            )


def _check_side(role: str, placed: Placed) -> None:
    if placed.kind == "tool_result" and role != "user":
        raise Refused(f"{placed.path}: `tool_result` blocks can only be in `user` messages")
    if placed.kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        raise Refused(f"{placed.path}: `{placed.kind}` blocks can only be in `assistant` messages")


def _check_text(where: str, block: Json) -> None:
    if block.get("type") != "text":
        return
    text = str(block.get("text", ""))
    if not text:
        raise Refused(f"{where}: text content blocks must be non-empty")
    if not text.strip():
        raise Refused(f"{where}: text content blocks must contain non-whitespace text")


def _check_last(draft: Draft) -> None:
    last = draft.conversation[-1]
    if last.role != "assistant":
        return
    # Clients write the fields that are not set as null.
    content = [
        {name: value for name, value in placed.block.items() if value is not None}
        for placed in last.blocks
    ]
    # An answer that was paused comes back as it is: it is no prefill.
    if content in draft.paused or last.of_kind("server_tool_use"):
        return
    if not draft.limits.prefill:
        raise Refused(
            "This model does not support assistant message prefill. The conversation must end "
            "with a user message."
        )
    text = str(content[-1].get("text", "")) if content else ""
    if text != text.rstrip():
        raise Refused("messages: final assistant content cannot end with trailing whitespace")
