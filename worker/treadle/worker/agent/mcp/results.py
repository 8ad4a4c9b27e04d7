"""From the result of an MCP call to what a tool returns. Pure."""

from __future__ import annotations

from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from treadle.worker.agent.core.conversation import Block
from treadle.worker.agent.tools.results import Content, Ended

IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
"""What the model APIs take."""


def to_result(result: CallToolResult) -> object:
    """Return the result as a tool's: text, JSON data, or content with images.

    A server that gives structured data says it again as text; the text is what is shown.
    """
    blocks = [_block(part) for part in result.content]
    value: object
    if any(block["type"] != "text" for block in blocks):
        value = Content(blocks)
    elif blocks:
        value = "\n".join(block["text"] for block in blocks)
    else:
        value = result.structured_content
    return Ended(result=value, status="error", error_type="mcp") if result.is_error else value


def _block(part: Any) -> Block:
    match part:
        case TextContent():
            return _text(part.text)
        case ImageContent() if part.mime_type in IMAGE_TYPES:
            source = {"type": "base64", "media_type": part.mime_type, "data": part.data}
            return {"type": "image", "source": source}
        case ImageContent() | AudioContent():
            return _text(f"[{part.type} of type {part.mime_type}, which cannot be shown]")
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return _text(f"{resource.uri}\n{resource.text}")
        case EmbeddedResource(resource=BlobResourceContents() as resource):
            kind = resource.mime_type or "unknown"
            return _text(f"[{resource.uri}: data of type {kind}, which cannot be shown]")
        case ResourceLink():
            return _text(f"[{part.name}: {part.uri}]")
        case _:
            return _text(f"[{getattr(part, 'type', type(part).__name__)}, which cannot be shown]")


def _text(text: str) -> Block:
    return {"type": "text", "text": text}
