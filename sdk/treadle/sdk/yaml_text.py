"""YAML text to plain data and back, by the rules of YAML 1.2, which are those of JSON.

PyYAML scans and parses. What a plain word means is decided here, because PyYAML follows YAML 1.1,
where ``on`` is a boolean, ``1:30`` is ninety and ``1e3`` is text. Tags are refused: they name
classes. Keys are always text. Mappings stay as written (``Pairs``); ``document.py`` looks for
duplicates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from treadle.sdk import wording
from treadle.sdk.limits import DEPTH_MAX
from treadle.sdk.written import Malformed, Pairs

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_LINE_BREAKS_OF_1_1 = re.compile("[\x85\u2028\u2029]")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def read_yaml(text: str) -> object:
    """Return the data of the one document of a text; raise ``Malformed``."""
    try:
        # The parser keeps its own stack, so depth is no danger until the values are built.
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        return _Reader(events).document()
    except (yaml.YAMLError, ValueError, OverflowError) as exc:
        # The last two come from escapes that stand for no character.
        mark = getattr(exc, "problem_mark", None)
        what = getattr(exc, "problem", None) or str(exc).partition("\n")[0]
        where = _line(mark) if mark is not None else ""
        raise Malformed(where, f"it is not YAML: {what}. Correct the text.") from exc


def write_yaml(plain: object) -> str:
    """Return plain data as YAML that ``read_yaml`` reads as the same."""
    return yaml.dump(  # pyright: ignore[reportUnknownMemberType] -- the stubs are incomplete
        plain, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100
    )


class _Reader:
    """Builds values from the parser's events, following the path to each."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, object] = {}

    def document(self) -> object:
        next(self._events)  # The start of the stream.
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise Malformed("", "it is empty. Write a workflow.")
        value = self._value(next(self._events), "", 0)
        next(self._events)  # The end of the document.
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise Malformed(
                _line(after.start_mark),
                "a second document begins here, and a file holds one workflow. Move it to a file "
                "of its own.",
            )
        return value

    def _value(self, event: Any, path: str, depth: int) -> object:
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, path)
        if event.tag is not None:
            raise self._refuse(
                event, path, f"the tag {event.tag!r} is refused, because tags name classes", "it"
            )
        if depth > DEPTH_MAX:
            raise self._refuse(event, path, f"it is nested deeper than {DEPTH_MAX} levels", "some")
        value: object
        match event:
            case yaml.ScalarEvent():
                value = event.value if event.style else _meaning(event.value)
            case yaml.SequenceStartEvent():
                value = list(self._items(path, depth))
            case _:
                value = Pairs(self._pairs(path, depth))
        # Only now: a value that holds itself would have no end.
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _aliased(self, event: Any, path: str) -> object:
        if event.anchor not in self._anchors:
            raise Malformed(
                path,
                f"the alias *{event.anchor} on {_line(event.start_mark)} stands for nothing, or "
                f"for itself. Put &{event.anchor} before an earlier value.",
            )
        return self._anchors[event.anchor]

    def _items(self, path: str, depth: int) -> Iterator[object]:
        index = 0
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            yield self._value(event, wording.item(path, index), depth + 1)
            index += 1

    def _pairs(self, path: str, depth: int) -> Iterator[tuple[str, object]]:
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event, path)
            where = wording.field(path, wording.key(key))
            yield key, self._value(next(self._events), where, depth + 1)

    def _key(self, event: Any, path: str) -> str:
        if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
            raise self._refuse(event, path, "a key must be a word", "it")
        key = event.value
        if key == "<<" and not event.style:
            raise self._refuse(event, path, "<< is refused: YAML 1.2 has no merge keys", "it")
        return key

    def _refuse(self, event: Any, path: str, why: str, what: str) -> Malformed:
        return Malformed(path, f"{why} ({_line(event.start_mark)}). Remove {what}.")


def _line(mark: Any) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"


def _meaning(word: str) -> object:
    """Return what a word without quotes stands for: the core schema of YAML 1.2, §10.3.2."""
    if word in _WORDS:
        return _WORDS[word]
    try:
        if _INT.fullmatch(word):
            return int(word, 0) if word[:2] in ("0o", "0x") else int(word)
    except ValueError:  # More digits than Python reads; as text it is refused where it stands.
        return word
    if _FLOAT.fullmatch(word):
        return float(word.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return word


class _Writer(yaml.SafeDumper):
    """Quotes every word that YAML 1.1 or 1.2 would read as something else than text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _write_text(writer: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # YAML 1.1 breaks lines at these, 1.2 does not: escaped, they are the same to both.
    style = '"' if _LINE_BREAKS_OF_1_1.search(text) else None
    return writer.represent_scalar(  # pyright: ignore[reportUnknownMemberType] -- as above
        "tag:yaml.org,2002:str", text, style=style
    )


_Writer.add_representer(str, _write_text)
for _tag, _word in (("float", _FLOAT), ("int", _INT)):
    _Writer.add_implicit_resolver(  # pyright: ignore[reportUnknownMemberType] -- as above
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_word.pattern})\Z"), list("-+.0123456789")
    )
