"""A reviewer's verdict, read from what it has said. Pure.

The last block fenced as ``json`` counts, and only one that is an object whose ``verdict`` is the
text ``DONE`` is done. Whatever else there is asks for another cycle: to ship what is broken costs
more than to look once more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import msgspec

from treadle.worker.agent.tools.canonical import well_formed

Word = Literal["DONE", "NEEDS_FIX"]

TEXT_CHARS_MAX = 8_000
"""Of a review that is handed on as it stands, because no findings could be read from it."""

_FENCE = re.compile(r"```[ \t]*json", re.IGNORECASE)
_END = re.compile(r"\s*```")


class Verdict(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a review came to."""

    verdict: Word
    findings: tuple[str, ...] = ()
    """What has to be done, one each."""
    summary: str = ""
    problem: str = ""
    """Why the review holds no verdict that could be read; '' if it does."""


def parse_verdict(text: str) -> Verdict:
    """Return the verdict that a review ends with. Never raises."""
    fences = list(_FENCE.finditer(text))
    if not fences:
        return unreadable("it holds no block fenced as json", text)
    body = text[fences[-1].end() :].lstrip()
    try:
        found, end = _decoder.raw_decode(body)
    except (ValueError, RecursionError) as exc:
        return unreadable(f"its last json block is no JSON ({_short(exc)})", text)
    if not _END.match(body, end):
        return unreadable("its last json block is more than one value, or does not end", text)
    return verdict_of(found, text)


def verdict_of(found: object, text: str) -> Verdict:
    """Return the verdict that JSON data states; ``text`` is all that was said."""
    if not isinstance(found, dict):
        return unreadable("its verdict is no object", text)
    fields = cast("dict[str, Any]", found)
    word: object = fields.get("verdict")
    if word not in get_args(Word):
        return unreadable("its object has no 'verdict' that is 'DONE' or 'NEEDS_FIX'", text)
    findings = _texts(fields.get("findings"))
    if word == "NEEDS_FIX" and not findings:
        findings = (_cut(text),)
    summary = fields.get("summary")
    return Verdict(
        verdict="DONE" if word == "DONE" else "NEEDS_FIX",
        findings=findings,
        summary=well_formed(summary) if isinstance(summary, str) else "",
    )


def unreadable(problem: str, text: str) -> Verdict:
    """Return the verdict about a review that holds none."""
    findings = (_cut(text),) if text.strip() else ()
    return Verdict(verdict="NEEDS_FIX", findings=findings, problem=problem)


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Sequence):
        return ()
    texts = (_text(item) for item in cast("Sequence[object]", value))
    return tuple(text for text in texts if text)


def _text(item: object) -> str:
    try:
        text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    except RecursionError:
        text = "(a finding that is nested too deeply to be shown)"
    return well_formed(text.strip())


def _cut(text: str) -> str:
    text = well_formed(text.strip())
    # The end of a review is where it comes to something.
    return text if len(text) <= TEXT_CHARS_MAX else f"[...]{text[-TEXT_CHARS_MAX:]}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


_decoder = json.JSONDecoder(object_pairs_hook=_once)


def _short(exc: BaseException) -> str:
    return str(exc)[:120] or type(exc).__name__
