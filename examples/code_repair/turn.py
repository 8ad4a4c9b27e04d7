"""One turn of the repair: ask the model until it has made one edit.

Pure of workflow matters: messages and a workspace in, the messages to add out.

Trap: a reply cut off by ``max_tokens`` can hold a tool call whose arguments parse well and are
wrong, because the SDK completes cut JSON. Nothing of such a reply is executed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import anthropic
from anthropic.types import ToolParam, ToolUseBlock
from claude import Message, Reply, ask
from workspace import EditRefused, SuiteResult, Workspace

from treadle.sdk.errors import NonRetryable, Retryable

QUESTIONS_MAX = 8
"""Questions to the model in one turn: reading a few files, then the edit."""
MAX_TOKENS = 4_096
MAX_TOKENS_AFTER_CUT = 16_384

SYSTEM = """\
You repair a small Python package. Its tests are right, the package is wrong. You are shown the \
first failing test. Read the files you need, then make one small edit with replace_in_file. The \
tests run after every edit, and you are shown the result. Never work around a test."""

TOOLS: list[ToolParam] = [
    {
        "name": "read_file",
        "description": "Read one file of the package.",
        "input_schema": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
    {
        "name": "replace_in_file",
        "description": "Replace text that occurs exactly once in a file of the package.",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "old": {"type": "string", "description": "The exact text, white space included."},
                "new": {"type": "string"},
            },
            "required": ["path", "old", "new"],
        },
    },
]


def show(messages: list[Message], result: SuiteResult, workspace: Workspace) -> None:
    """Add what the model is told about the package as it stands."""
    text = f"{len(result.failed)} tests fail, {result.passed} pass."
    if result.failed:
        text += f" The first that fails is {result.failed[0]}:\n\n{result.output}"
    text += f"\n\nThe files: {', '.join(workspace.files)}."
    _add_user_blocks(messages, [{"type": "text", "text": text}])


def _add_user_blocks(messages: list[Message], blocks: list[dict[str, Any]]) -> None:
    # Results come first and text after them, in one message: the shape models are trained on.
    if messages and messages[-1]["role"] == "user":
        blocks = [*messages.pop()["content"], *blocks]
    messages.append({"role": "user", "content": blocks})


async def edit_once(
    model: anthropic.AsyncAnthropic,
    messages: list[Message],
    workspace: Workspace,
    on_question: Callable[[], None],
) -> str:
    """Extend ``messages`` until one edit was made and return what it was; '' if none was.

    Every tool call is answered, so that the messages can be sent again whatever happened.
    """
    max_tokens = MAX_TOKENS
    for _ in range(QUESTIONS_MAX):
        on_question()
        reply = await ask(model, messages, system=SYSTEM, tools=TOOLS, max_tokens=max_tokens)
        if reply.stop_reason == "max_tokens":
            if max_tokens == MAX_TOKENS_AFTER_CUT:
                raise NonRetryable(f"the model's reply does not fit into {max_tokens} tokens")
            max_tokens = MAX_TOKENS_AFTER_CUT
            continue
        messages.append({"role": "assistant", "content": _usable_content(reply)})
        if reply.stop_reason == "pause_turn":
            continue
        calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
        if not calls:
            return ""
        edit, results = _execute(calls, workspace)
        _add_user_blocks(messages, results)
        if edit:
            return edit
    return ""


def _usable_content(reply: Reply) -> list[dict[str, Any]]:
    match reply.stop_reason:
        case None:
            raise Retryable("the model's reply has no stop reason: it was cut on its way")
        case "refusal":
            raise NonRetryable("the model refuses to repair this package")
        case "model_context_window_exceeded":
            raise NonRetryable("the conversation no longer fits into the model's context window")
        case _:
            pass
    # Blocks go back as they came; only an empty text, which the API sends, it does not accept.
    blocks = cast("list[dict[str, Any]]", reply.to_dict()["content"])
    content = [block for block in blocks if block.get("text") != ""]
    if not content:
        raise Retryable("the model's reply is empty")
    return content


def _execute(calls: list[ToolUseBlock], workspace: Workspace) -> tuple[str, list[dict[str, Any]]]:
    """Run the calls of one reply; return the edit that was made and a result for every call."""
    edit = ""
    results: list[dict[str, Any]] = []
    for call in calls:
        failed = False
        try:
            if edit:
                raise EditRefused("one edit at a time: the tests run first")
            if call.name == "replace_in_file":
                path, old, new = _arguments(call, "path", "old", "new")
                workspace.replace(path, old, new)
                text, edit = f"edited {path}", _summary(path, old, new)
            elif call.name == "read_file":
                text = workspace.read(*_arguments(call, "path"))
            else:
                raise EditRefused(f"there is no tool {call.name!r}")
        except EditRefused as exc:
            text, failed = str(exc), True
        results.append(
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": text or "(the file is empty)",
                "is_error": failed,
            }
        )
    return edit, results


def _arguments(call: ToolUseBlock, *names: str) -> list[str]:
    values = [call.input.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            raise EditRefused(f"{call.name} needs {name!r} as a text")
    return cast("list[str]", values)


def _summary(path: str, old: str, new: str) -> str:
    """Return the file and the first line that is new."""
    before = set(old.splitlines())
    added = [line.strip() for line in new.splitlines() if line not in before]
    return f"{path}: {added[0] if added else '(lines removed)'}"
