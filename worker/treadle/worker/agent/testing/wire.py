"""JSON as it travels: typed looks into parsed values, and one way to write them."""

from __future__ import annotations

import json
from typing import Any, TypeGuard

Json = dict[str, Any]
"""A JSON object."""


def _is_object(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def as_object(value: object) -> Json | None:
    """Return ``value`` as an object, or ``None`` if it is something else."""
    return value if _is_object(value) else None


def as_list(value: object) -> list[Any] | None:
    """Return ``value`` as a list, or ``None`` if it is something else."""
    return value if _is_list(value) else None


def as_int(value: object) -> int | None:
    """Return ``value`` as an integer, or ``None``; JSON's ``true`` is not one."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def objects(value: object) -> list[Json]:
    """Return the objects of a list, and nothing if ``value`` is no list."""
    return [found for item in as_list(value) or [] if (found := as_object(item)) is not None]


def blocks_of(content: object) -> list[Json]:
    """Return content as blocks: a string is short for one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def compact(value: object) -> str:
    """Write JSON without spaces, the keys in the order they have."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
