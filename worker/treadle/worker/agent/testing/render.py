"""From scripted blocks to the message that is sent: ids, signatures, usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from treadle.worker.agent.testing.blocks import (
    Block,
    RedactedThinking,
    Text,
    Thinking,
    ToolUse,
    Verbatim,
)
from treadle.worker.agent.testing.script import Answer
from treadle.worker.agent.testing.seal import Seal
from treadle.worker.agent.testing.usage import InputUsage, estimate_output
from treadle.worker.agent.testing.wire import Json, compact


@dataclass(frozen=True)
class Rendered:
    """A block as it is sent, and the text of its input in a stream."""

    block: Json
    input_json: str = ""

    def opening(self) -> Json:
        """Return the block as a stream begins it."""
        match self.block["type"]:
            case "text":
                return {**self.block, "text": ""}
            case "thinking":
                signature = {"signature": ""} if "signature" in self.block else {}
                return {**self.block, "thinking": "", **signature}
            case "tool_use" | "server_tool_use":
                return {**self.block, "input": {}}
            case _:
                return self.block


class Renderer:
    """Gives answers their ids, in order, and their signatures."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._messages = 0
        self._calls = 0

    def content(self, answer: Answer) -> list[Rendered]:
        """Return the content of an answer, and remember it as issued."""
        rendered = [self._block(block) for block in answer.blocks]
        self._seal.remember([each.block for each in rendered])
        return rendered

    def message(
        self, answer: Answer, content: list[Rendered], model: str, used: InputUsage
    ) -> Json:
        """Return the whole message."""
        self._messages += 1
        blocks = [each.block for each in content]
        message: Json = {
            "id": f"msg_fake_{self._messages:04}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": blocks,
            "stop_reason": answer.stop_reason,
            "stop_sequence": answer.stop_sequence,
            "usage": {
                **used.as_json(),
                "output_tokens": estimate_output(blocks),
                **answer.usage,
            },
        }
        if answer.stop_details is not None:
            message["stop_details"] = answer.stop_details
        return message

    def _block(self, block: Block) -> Rendered:
        match block:
            case Text():
                return Rendered({"type": "text", "text": block.text})
            case ToolUse():
                return self._call(block)
            case Thinking():
                wire: Json = {"type": "thinking", "thinking": block.thinking}
                if block.signed:
                    wire["signature"] = self._seal.sign(block.thinking)
                return Rendered(wire)
            case RedactedThinking():
                data = self._seal.redact(block.secret)
                return Rendered({"type": "redacted_thinking", "data": data})
            case Verbatim():
                return Rendered(block.block, compact(block.block.get("input", {})))
            case _:
                assert_never(block)

    def _call(self, call: ToolUse) -> Rendered:
        if call.id is None:
            self._calls += 1
        wire: Json = {
            "type": "tool_use",
            "id": call.id or f"toolu_fake_{self._calls:04}",
            "name": call.name,
            "input": call.input,
        }
        given = call.partial_json
        return Rendered(wire, compact(call.input) if given is None else given)
