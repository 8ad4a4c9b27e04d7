"""Cache markers: at most four in all, on blocks that take one, the long-lived ones first."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft
from treadle.worker.agent.testing.wire import Json, as_object, blocks_of, objects

MARKERS_MAX = 4


def check_cache_markers(draft: Draft) -> None:
    """Refuse too many markers, malformed ones, and a long-lived one after a short-lived one."""
    found = list(_markers(draft))
    seen_short = False
    for path, marker in found:
        if marker.get("type") != "ephemeral":
            raise Refused(f"{path}.cache_control.type: Input should be 'ephemeral'")
        ttl = marker.get("ttl") or "5m"
        if ttl not in ("5m", "1h"):
            raise Refused(f"{path}.cache_control.ttl: Input should be '5m' or '1h'")
        if ttl == "1h" and seen_short:
            raise Refused(
                f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after "
                "a ttl='5m' cache_control block. Note that blocks are processed in the following "
                "order: `tools`, `system`, `messages`."
            )
        seen_short = seen_short or ttl == "5m"
    count = len(found) + (as_object(draft.body.get("cache_control")) is not None)
    if count > MARKERS_MAX:
        raise Refused(
            f"A maximum of {MARKERS_MAX} blocks with cache_control may be provided. Found {count}."
        )


def _markers(draft: Draft) -> Iterator[tuple[str, Json]]:
    """Yield the markers in the order in which the prompt is read, each with its path."""
    for i, tool in enumerate(objects(draft.body.get("tools"))):
        yield from _marker(f"tools.{i}", tool)
    for i, block in enumerate(blocks_of(draft.body.get("system"))):
        yield from _marker(f"system.{i}", block)
    for spoken in draft.conversation:
        for placed in spoken.blocks:
            for i, inner in enumerate(objects(placed.block.get("content"))):
                yield from _marker(f"{placed.path}.content.{i}", inner)
            yield from _marker(placed.path, placed.block)


def _marker(path: str, block: Json) -> Iterator[tuple[str, Json]]:
    marker = as_object(block.get("cache_control"))
    if marker is not None:
        yield path, marker
