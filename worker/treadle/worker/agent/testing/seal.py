"""Signatures of reasoning, and the memory of what was issued.

The API signs each ``thinking`` block and takes it back only as it was. Here the signature is an
HMAC of the text under a key that the server alone knows, so that a block which was edited, made
up or signed elsewhere shows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

from treadle.worker.agent.testing.wire import Json

REASONING = frozenset({"thinking", "redacted_thinking"})


class Seal:
    """Signs, verifies, and remembers the reasoning that went with each tool call."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._signatures: set[str] = set()
        self._unsigned: set[str] = set()
        self._content_by_call: dict[str, list[Json]] = {}

    def sign(self, text: str) -> str:
        """Return the signature of a thinking text."""
        return self._digest(b"thinking", text)

    def redact(self, secret: str) -> str:
        """Return data that hides ``secret``; only this seal knows it for its own."""
        hidden = base64.b64encode(secret.encode()).decode()
        return f"{self._digest(b'redacted', hidden)}.{hidden}"

    def remember(self, content: list[Json]) -> None:
        """Note what an answer holds, so that its reasoning can be asked back unchanged."""
        for block in content:
            if block["type"] == "thinking" and block.get("signature"):
                self._signatures.add(block["signature"])
            elif block["type"] == "thinking":
                self._unsigned.add(block["thinking"])
            elif block["type"] == "tool_use":
                self._content_by_call[block["id"]] = content

    def is_genuine(self, block: Json) -> bool:
        """True for a block of reasoning that is as this seal made it."""
        if block["type"] == "redacted_thinking":
            mark, _, hidden = str(block.get("data", "")).partition(".")
            return hmac.compare_digest(mark.encode(), self._digest(b"redacted", hidden).encode())
        text, signature = block.get("thinking"), block.get("signature") or ""
        if not isinstance(text, str) or not isinstance(signature, str):
            return False
        if not signature:
            return text in self._unsigned
        return hmac.compare_digest(signature.encode(), self.sign(text).encode())

    def has_issued(self, signature: object) -> bool:
        """True for a signature that this seal gave to some text."""
        return signature in self._signatures

    def content_with(self, call_ids: list[str]) -> list[Json] | None:
        """Return the answer that held the last of these calls, or ``None`` for calls of others."""
        known = [self._content_by_call[i] for i in call_ids if i in self._content_by_call]
        return known[-1] if known else None

    def _digest(self, purpose: bytes, text: str) -> str:
        mac = hmac.new(self._key, purpose + b"\0" + text.encode(), hashlib.sha256)
        return base64.b64encode(mac.digest()).decode()
