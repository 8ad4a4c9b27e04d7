"""The table of reasons in docs/control-flow.md names every one that the code gives, and no other.

Method: read the code, and follow the first argument of each ``Failure(...)`` to the texts that it
can be: a text, a constant, a class of errors, or an argument of the function around it, whose
calls are followed in turn. What leads elsewhere is listed here, with what it can be.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from treadle.worker.agent.core.stops import StopReason

TABLE = re.compile(r"^## Reasons$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (`[^|]*) \|", re.MULTILINE)
#: Of a model's API, and of the rules of an evaluation: no failures of steps.
ELSEWHERE = ("agent/testing/", "agent/evals/")
BOUNDS = frozenset(
    ("max_iterations", "max_duration", "max_tool_calls", "max_tokens", "max_cost", "run_budget")
)
#: The name of an error's class, which the page's first row stands for.
CLASS = frozenset({"a class"})
#: What is read from something stored, by the function that reads it: the texts that it can be.
READ: dict[tuple[str, str], frozenset[str]] = {
    ("_step_parked", "event.reason"): BOUNDS,
    ("limit", "reason"): BOUNDS,
    ("wrap_up_failed", "task.wrap_up"): BOUNDS,
    ("_item", "before.type"): frozenset(),  # That of the item's last attempt.
}
#: Errors of the package that become failures by their class, each with a row of its own.
OWN_CLASSES = frozenset(("HandlerError", "InvalidPayload", "StoredUnreadable", "UserError"))

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Around(NamedTuple):
    """The function that something stands in."""

    path: Path
    function: Function


Call = tuple[Around | None, ast.Call]


class Code:
    """What the packages' files say; one is parsed only if a call that is asked for stands in it."""

    def __init__(self, root: Path) -> None:
        self._texts = {
            path: path.read_text(encoding="utf-8")
            for part in ("engine", "sdk", "worker")
            for path in (root / part).rglob("*.py")
            if not any(each in path.as_posix() for each in ELSEWHERE)
        }
        self._functions = cache(self._functions_of)

    def constant(self, name: str) -> str:
        pattern = re.compile(rf'^{name} = "(\w+)"$', re.MULTILINE)
        (found,) = {text for each in self._texts.values() for text in pattern.findall(each)}
        return str(found)

    def calls(self, name: str, of: Path | None = None) -> Iterator[Call]:
        """Yield the calls of a function; of a private one, those in its own file."""
        called = re.compile(rf"(?<!\w)(?<!def ){name}\(")
        for path, text in self._texts.items():
            is_seen = of is None or not name.startswith("_") or of == path
            if is_seen and called.search(text):
                yield from self._functions(path).get(name, [])

    def _functions_of(self, path: Path) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {}

        def walk(node: ast.AST, around: Around | None) -> None:
            for child in ast.iter_child_nodes(node):
                match child:
                    case ast.Call(
                        func=ast.Name(id=name) | ast.Attribute(value=ast.Name(), attr=name)
                    ):
                        found.setdefault(name, []).append((around, child))
                    case _:
                        pass
                walk(child, Around(path, child) if isinstance(child, Function) else around)

        walk(ast.parse(self._texts[path]), None)
        return found


def argument(call: ast.Call, place: int, name: str) -> ast.expr:
    named = (keyword.value for keyword in call.keywords if keyword.arg == name)
    return call.args[place] if len(call.args) > place else next(named)


def reasons(
    code: Code, name: str, place: int, keyword: str, of: Path | None = None
) -> frozenset[str]:
    """Return what an argument of a function can be, at all of its calls."""
    found: set[str] = set()
    for around, call in code.calls(name, of):
        found |= texts(code, around, argument(call, place, keyword))
    return frozenset(found)


def texts(code: Code, around: Around | None, value: ast.expr) -> frozenset[str]:
    """Return what an expression in a function can be."""
    inside = around.function.name if around else ""
    read = READ.get((inside, ast.unparse(value)))
    if read is not None:
        return read
    match value:
        case ast.Constant(value=str(text)):
            return frozenset({text})
        case ast.IfExp(body=one, orelse=other):
            return texts(code, around, one) | texts(code, around, other)
        case ast.Attribute(value=ast.Call(func=ast.Name(id="type")), attr="__name__"):
            return CLASS
        case ast.Name(id=name) if name.isupper():
            return frozenset({code.constant(name)})
        case ast.Name(id=name) if around is not None:
            taken = [each.arg for each in around.function.args.args]
            if name in taken:
                return reasons(code, inside, taken.index(name), name, around.path)
            values = _set(around.function, name)
            return frozenset().union(*(texts(code, around, each) for each in values))
        case _:
            pass
    pytest.fail(f"{inside}: {ast.unparse(value)} leads to no text; add it to READ")


def _set(function: Function, name: str) -> list[ast.expr]:
    """Return what a name is given in a function, tuples one by one."""
    found: list[ast.expr] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=given)], value=value) if given == name:
                found.append(value)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=True)
                found += [v for n, v in pairs if isinstance(n, ast.Name) and n.id == name]
            case _:
                pass
    assert found, f"{function.name} does not set {name}"
    return found


@pytest.fixture(scope="module")
def named(request: pytest.FixtureRequest) -> set[str]:
    """The reasons in the first column of the page's tables."""
    page = (request.config.rootpath / "docs" / "control-flow.md").read_text(encoding="utf-8")
    section = TABLE.search(page)
    assert section is not None
    cells = [re.findall(r"`([^`]+)`", cell) for cell in ROW.findall(section[1])]
    listed = [name for cell in cells for name in cell]
    assert len(listed) == len(set(listed)), "a reason stands in two rows"
    return set(listed)


@pytest.mark.slow
def test_the_table_of_reasons_is_that_of_the_code(
    request: pytest.FixtureRequest, named: set[str]
) -> None:
    code = Code(request.config.rootpath)
    given = set(reasons(code, "Failure", 0, "type"))
    assert {"worker_lost", "waits_for_itself", "continue_in_task", *BOUNDS, *CLASS} <= given
    parked = {code.constant("MAX_ATTEMPTS")}  # Replaces the type of the last failure.
    assert named == (given - CLASS) | parked | OWN_CLASSES


def test_the_page_about_agents_names_why_one_stops(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "agents.md").read_text(encoding="utf-8")
    assert [each for each in get_args(StopReason) if f"`{each}`" not in page] == []
