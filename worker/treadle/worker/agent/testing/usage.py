"""Tokens: a deterministic estimate, and a prompt cache that knows equal prefixes.

The prompt is a row of segments in the order in which the API reads them: each tool, each system
block, each block of each message. A segment's tokens are a quarter of the UTF-8 bytes of its
compact JSON, rounded up; an image or a document in base64 counts ``MEDIA_TOKENS`` instead.

A marker (``cache_control``) stores the prefix that ends with its block. A later request reads the
longest stored prefix that ends at one of its own markers or at most ``LOOKBACK_BLOCKS`` before.
Prefixes are compared by their bytes, so keys in another order miss. As in the API, another model
shares nothing, and other ``tool_choice`` or ``thinking`` settings miss from the messages on.
Stored prefixes never expire here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from treadle.worker.agent.testing.wire import Json, as_object, blocks_of, compact, objects

BYTES_PER_TOKEN = 4
MEDIA_TOKENS = 1600
LOOKBACK_BLOCKS = 20


@dataclass(frozen=True)
class Segment:
    """A part of the prompt that is cached whole or not at all."""

    text: str
    tokens: int
    ttl: str | None
    """Of the marker on it: ``5m`` or ``1h``; ``None`` without one."""


@dataclass(frozen=True)
class InputUsage:
    """The input tokens of one request. The three are disjoint."""

    uncached: int
    read: int = 0
    written: dict[str, int] = field(default_factory=dict[str, int])
    """By time to live."""

    @property
    def total(self) -> int:
        """All tokens of the prompt."""
        return self.uncached + self.read + sum(self.written.values())

    def as_json(self) -> Json:
        """Return the input part of ``usage``."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": sum(self.written.values()),
            "cache_read_input_tokens": self.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written.get("5m", 0),
                "ephemeral_1h_input_tokens": self.written.get("1h", 0),
            },
        }


def estimate(text: str) -> int:
    """Return the tokens of a text."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def estimate_output(content: list[Json]) -> int:
    """Return the tokens of an answer: at least one."""
    spoken = [
        compact(b["input"]) + b["name"] if b["type"] == "tool_use" else _spoken(b) for b in content
    ]
    return max(1, sum(estimate(part) for part in spoken))


def _spoken(block: Json) -> str:
    for key in ("text", "thinking", "data"):
        if isinstance(block.get(key), str):
            return str(block[key])
    return compact(block)


def segments_of(body: Json) -> list[Segment]:
    """Return the prompt of a request as segments."""
    tools = [_segment(tool, "tool") for tool in objects(body.get("tools"))]
    system = [_segment(block, "system") for block in blocks_of(body.get("system"))]
    # Worth no tokens, but the cache of the messages depends on them.
    settings = compact([body.get("thinking"), body.get("tool_choice")])
    messages = [
        _segment(block, f"{message.get('role')}:{settings}")
        for message in objects(body.get("messages"))
        for block in blocks_of(message.get("content"))
    ]
    found = [*tools, *system, *messages]
    top_level = as_object(body.get("cache_control"))
    if top_level is not None and found:
        last = found[-1]
        found[-1] = Segment(last.text, last.tokens, last.ttl or _ttl(top_level))
    return found


def count_tokens(body: Json) -> int:
    """Return the tokens of the whole prompt."""
    return sum(segment.tokens for segment in segments_of(body))


def _ttl(marker: Json) -> str:
    return str(marker.get("ttl") or "5m")


def _segment(block: Json, where: str) -> Segment:
    marker = as_object(block.get("cache_control"))
    for inner in objects(block.get("content")):
        marker = marker or as_object(inner.get("cache_control"))
    text = compact({k: v for k, v in block.items() if k != "cache_control"})
    source = as_object(block.get("source")) or {}
    tokens = MEDIA_TOKENS if source.get("type") == "base64" else estimate(text)
    return Segment(f"{where}\n{text}", tokens, _ttl(marker) if marker else None)


class PromptCache:
    """The prefixes that earlier requests stored."""

    def __init__(self, tokens_min: int = 0) -> None:
        self._tokens_min = tokens_min
        self._stored: set[bytes] = set()

    def clear(self) -> None:
        """Forget everything, as if all had expired."""
        self._stored.clear()

    def account(self, body: Json) -> InputUsage:
        """Return what a request reads and writes, and store what it marks."""
        segments = segments_of(body)
        sums, digests = self._prefixes(str(body.get("model")), segments)
        markers = [
            (i, s.ttl) for i, s in enumerate(segments) if s.ttl and sums[i] >= self._tokens_min
        ]
        hits = [
            i
            for marker, _ in markers
            for i in range(marker, max(marker - LOOKBACK_BLOCKS, -1), -1)
            if digests[i] in self._stored
        ]
        end = max(hits, default=-1)
        read = sums[end] if hits else 0
        cached, written = read, dict[str, int]()
        for marker, ttl in markers:
            if sums[marker] > cached:
                written[ttl] = written.get(ttl, 0) + sums[marker] - cached
                cached = sums[marker]
            self._stored.add(digests[marker])
        return InputUsage((sums[-1] if sums else 0) - cached, read, written)

    @staticmethod
    def _prefixes(model: str, segments: list[Segment]) -> tuple[list[int], list[bytes]]:
        """Return the tokens and the digest of each prefix."""
        sums: list[int] = []
        digests: list[bytes] = []
        digest, total = hashlib.sha256(model.encode()), 0
        for segment in segments:
            digest.update(b"\0" + segment.text.encode())
            total += segment.tokens
            sums.append(total)
            digests.append(digest.digest())
        return sums, digests
