"""Rules of the code that no linter knows: sizes, subjects, public names, tests that say what
they do. Method: read the files and their syntax trees; nothing runs."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import re
import statistics
from pathlib import Path

import pytest

LINES_MEDIAN_MAX = 150
LINES_MAX = 500

PUBLIC = (
    "treadle.sdk",
    "treadle.sdk.testing",
    "treadle.engine",
    "treadle.worker",
    "treadle.worker.agent",
    "treadle.worker.agent.mcp",
    "treadle.worker.agent.plan",
    "treadle.worker.agent.pydantic_ai",
    "treadle.worker.agent.testing",
)

# What only these may spell: subjects, stream and bucket names.
SPELL_SUBJECTS = ("subjects.py", "subjects_of_starts.py", "subjects_of_providers.py")
SUBJECT = re.compile(
    r"\$KV\.|\bKV_|_(EVENTS|TIMERS|STREAM|DEAD|COLLECT)\b"
    r"|\.(evt|tmr|fire|out|dead|beat|ctl|col)\."
)
# The API of the server itself, its reply inboxes and its bucket of buckets: the bus only.
SERVER_API = re.compile(r"\$JS\.|\$SYS\.|_INBOX")


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _strings(module: ast.Module) -> list[tuple[int, str]]:
    """Return every string of a module with its line, docstrings left out."""
    docs = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        (node.lineno, node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_the_usual_module_is_short_and_none_is_long(modules: list[Path]) -> None:
    sizes = {path: _lines(path) for path in modules}
    assert statistics.median(sizes.values()) <= LINES_MEDIAN_MAX
    assert not {str(path): size for path, size in sizes.items() if size > LINES_MAX}


def test_no_test_or_example_is_long(root: Path, tree: list[Path]) -> None:
    others = [path for path in tree if path.suffix == ".py" and path.is_relative_to(root)]
    assert not {str(path): _lines(path) for path in others if _lines(path) > LINES_MAX}


def test_subjects_are_spelled_in_one_place(root: Path, modules: list[Path]) -> None:
    found: list[str] = []
    for path in modules:
        if path.name in SPELL_SUBJECTS:
            continue
        in_bus, source = path.parent.name == "bus", path.read_text(encoding="utf-8")
        if not (SUBJECT.search(source) or SERVER_API.search(source)):
            continue
        for line, text in _strings(ast.parse(source)):
            if SUBJECT.search(text) or (SERVER_API.search(text) and not in_bus):
                found.append(f"{path.relative_to(root)}:{line}: {text!r}")
    assert found == []


def test_every_test_file_opens_with_its_method(root: Path, tree: list[Path]) -> None:
    files = [
        path for path in tree if path.is_relative_to(root / "tests") and path.match("test_*.py")
    ]
    bare = [
        str(path.relative_to(root))
        for path in files
        if not path.read_text(encoding="utf-8").startswith('"""')
    ]
    assert bare == []


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_exactly_those_of_all(root: Path, name: str) -> None:
    folder, _, rest = name.removeprefix("treadle.").partition(".")
    package = root / folder / "treadle" / folder / rest.replace(".", "/")
    if not ((package / "__init__.py").exists() or package.with_suffix(".py").exists()):
        pytest.skip(f"{name} has no module of its own")
    module = importlib.import_module(name)
    exported: list[str] = getattr(module, "__all__", [])
    for item in exported:
        assert hasattr(module, item), f"{name}.__all__ names {item!r}, which it does not have"
        value = getattr(module, item)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{name}.{item} has no docstring"
    visible = {
        item
        for item, value in vars(module).items()
        if not item.startswith("_") and not inspect.ismodule(value) and item != "annotations"
    }
    assert visible - set(exported) == set()
    assert len(exported) == len(set(exported))


def test_no_field_of_a_log_line_has_the_name_of_one_of_loggings_own(modules: list[Path]) -> None:
    # ``logging`` raises for them, where the line is written: mostly in an except.
    own = {"message", "asctime", *vars(logging.makeLogRecord({}))}
    found: list[str] = []
    for path in modules:
        text = path.read_text("utf-8")
        for scope in ast.walk(ast.parse(text)) if "extra=" in text else ():
            if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            inner = list(ast.walk(scope))
            if not any(isinstance(node, ast.keyword) and node.arg == "extra" for node in inner):
                continue
            keys = (key for node in inner if isinstance(node, ast.Dict) for key in node.keys)
            named = {key.value for key in keys if isinstance(key, ast.Constant)}
            found += [f"{path}: {scope.name}: {name}" for name in sorted(named & own)]
    assert not found
