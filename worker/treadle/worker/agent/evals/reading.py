"""Cases from files: YAML or JSON, one case, a list of cases, or ``cases:`` with a list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, cast, get_args

from treadle.sdk import wording
from treadle.sdk.errors import Problem, UserError, clause
from treadle.sdk.written import Malformed, Pairs, Plain
from treadle.sdk.yaml_text import read_yaml
from treadle.worker.agent.evals.case import Case, Expected, MockedResult
from treadle.worker.agent.evals.plain import PlainReader
from treadle.worker.agent.evals.trajectory import TRACE
from treadle.worker.agent.events import EventName

FILE_BYTES_MAX = 8 * 1024 * 1024
"""A longer file of cases was hardly written by a person; several files are read as well."""
LIVE = "live"
_SUFFIXES = (".yaml", ".yml", ".json")
_TRACE_EVENTS = frozenset({*TRACE, *get_args(EventName)})


class InvalidCases(UserError):
    """A file of cases with problems, all of them listed."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        lines = "\n".join(f"  {problem!r}" for problem in problems)
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(f"the cases of {source} have {count}:\n{lines}")


def load_cases(path: str | PathLike[str]) -> tuple[Case, ...]:
    """Return the cases of a file; raise ``InvalidCases`` with every problem it has."""
    file = Path(path)
    source = str(file)
    if file.suffix.lower() not in _SUFFIXES:
        raise _refused(source, "the name does not end in .yaml, .yml or .json. Rename the file.")
    try:
        with file.open("rb") as stream:
            raw = stream.read(FILE_BYTES_MAX + 1)
    except OSError as exc:
        raise UserError(
            f"{file} cannot be read: {exc.strerror or exc}. Name an existing file of cases."
        ) from exc
    if len(raw) > FILE_BYTES_MAX:
        raise _refused(source, f"it is longer than {FILE_BYTES_MAX} bytes. Split it.")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _refused(source, f"byte {exc.start} is not UTF-8. Save it as UTF-8.") from exc
    return parse_cases(text, source=source, is_json=file.suffix.lower() == ".json")


def parse_cases(text: str, *, source: str = "text", is_json: bool = False) -> tuple[Case, ...]:
    """Return the cases of a text; raise ``InvalidCases`` with every problem it has."""
    if not text.strip():
        raise _refused(source, "it is empty. Write a case: case_id, goal, expected.")
    plain = Plain()
    try:
        value = plain.value(_read_json(text) if is_json else read_yaml(text))
    except Malformed as exc:
        raise InvalidCases(source, [*plain.problems, _placed(exc.problem)]) from exc
    return cases_from(value, source=source, found=plain.problems)


def cases_from(
    value: object, *, source: str = "data", found: Sequence[Problem] = ()
) -> tuple[Case, ...]:
    """Return the cases that plain data describes; raise ``InvalidCases``.

    ``found`` are problems the caller knows already.
    """
    reader = PlainReader()
    read: list[tuple[str, Case]] = []
    for path, each in _each(value):
        case = reader.read(_scripted(each), Case, path)
        if case is not None:
            read.append((path, case))
    problems = [*found, *reader.problems]
    problems += [problem for path, case in read for problem in _meaning(case, path)]
    problems += _doubles(read)
    if not problems and not read:
        problems.append(Problem("cases", "there is none. Write a case."))
    if problems:
        ordered = sorted(map(_placed, problems), key=lambda p: wording.order(p.path))
        raise InvalidCases(source, ordered)
    return tuple(case for _, case in read)


def _each(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        value, prefix = (fields["cases"], "cases") if set(fields) == {"cases"} else (fields, "")
    else:
        prefix = ""
    if not isinstance(value, list):
        yield "", value
        return
    for index, each in enumerate(cast("list[object]", value)):
        yield wording.item(prefix, index), each


def _scripted(value: object) -> object:
    """Return the case without ``model: live``, which is what a case without a model has."""
    if isinstance(value, Mapping):
        fields = dict(cast("Mapping[str, object]", value))
        if fields.get("model") == LIVE:
            del fields["model"]
        return fields
    return value


# ------------------------------------------------------------------ what it means


def _meaning(case: Case, path: str) -> Iterator[Problem]:
    for name in ("case_id", "goal"):
        if not getattr(case, name).strip():
            yield Problem(wording.field(path, name), "it is empty. Write a text.")
    mocked = wording.field(path, "mocked_tools")
    for tool, results in case.mocked_tools.items():
        where = wording.field(mocked, wording.key(tool))
        if not results:
            yield Problem(where, "the list is empty, so no call could be answered. Add a result.")
        for index, result in enumerate(results):
            yield from _mocked(result, wording.item(where, index))
    yield from _expected(case.expected, wording.field(path, "expected"))


def _mocked(result: MockedResult, path: str) -> Iterator[Problem]:
    if result.status in ("ok", "malformed"):
        if result.reason:
            text = f"a result that is {result.status} has no reason. Put it into output."
            yield Problem(wording.field(path, "reason"), text)
        if result.status == "malformed" and not isinstance(result.output, str | None):
            text = "a malformed output is a text, given as it is. Put it in quotes."
            yield Problem(wording.field(path, "output"), text)
    elif result.output is not None:
        text = f"a call that ends with {result.status} has no output. Put it into reason."
        yield Problem(wording.field(path, "output"), text)


def _expected(expected: Expected, path: str) -> Iterator[Problem]:
    if expected == Expected():
        yield Problem(
            path, "it expects nothing, so no run could fail. Give a stop_reason at least."
        )
    if expected.max_tool_calls is not None and expected.max_tool_calls < 0:
        where = wording.field(path, "max_tool_calls")
        yield Problem(where, f"{expected.max_tool_calls} is less than 0. Give 0 or more.")
    for index, word in enumerate(expected.requires_trace_events):
        if word not in _TRACE_EVENTS:
            where = wording.item(wording.field(path, "requires_trace_events"), index)
            text = f"{word!r} is no event. Choose of {', '.join(TRACE)}, or an event's name."
            yield Problem(where, text)


def _doubles(read: Sequence[tuple[str, Case]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for path, case in read:
        if case.case_id in seen:
            where = wording.field(path, "case_id")
            yield Problem(where, f"{case.case_id!r} is the id of an earlier case. Choose another.")
        seen.add(case.case_id)


# ------------------------------------------------------------------ leaves


def _read_json(text: str) -> object:
    try:
        read: Any = json.loads(text, object_pairs_hook=Pairs)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise Malformed(where, f"it is not JSON: {exc.msg}. Correct the text.") from exc
    except (ValueError, RecursionError) as exc:
        raise Malformed(
            "", f"it is not JSON that can be read: {clause(exc)}. Correct the text."
        ) from exc
    return read


def _placed(problem: Problem) -> Problem:
    return problem if problem.path else Problem("case", problem.text)


def _refused(source: str, text: str) -> InvalidCases:
    return InvalidCases(source, [Problem("file", text)])
