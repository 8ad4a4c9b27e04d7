"""Does a test notice when the core is wrong? Change one thing at a time and see.

    python tests/mutation.py [--jobs 2] [--minutes 30] [--module retry] [--profile mutation]

Each mutant is the core with one comparison, constant, operator, condition, keyword argument,
branch or return value changed; numbers with a name are choices and stay. A forked child, which
has pytest and the SDK imported already, puts it in the place of the module and runs
``tests/core``: examples first, then properties. A mutant that no test notices is printed;
``docs/mutation.md`` explains each that is expected.
Exit status 0: at least 90 % were noticed, and no survivor is new.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple

import hypothesis.stateful  # noqa: F401  (imported before the forks, not in each of them)
import pytest

import treadle.sdk.messages
import treadle.sdk.run
import treadle.sdk.validation  # noqa: F401

ROOT = Path(__file__).parents[1]
CORE = ROOT / "engine" / "treadle" / "engine" / "core"
EXPLAINED = ROOT / "docs" / "mutation.md"
KILLED_SHARE_MIN = 0.90
MUTANT_CPU_S_MAX = 60
"""A mutant that never ends is noticed. Processor time, so that a busy machine notices no more."""
HANGS_S_MAX = 1_200

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
}
_FUNCTIONS = {"min": "max", "max": "min", "all": "any", "any": "all"}


_WORD = re.compile(r"[A-Za-z_]*\Z")


class Mutant(NamedTuple):
    """The core with one change."""

    module: str
    line: int
    change: str
    code: CodeType

    @property
    def name(self) -> str:
        """How ``docs/mutation.md`` names it; the line is no part of it, for lines move."""
        return f"{self.module}: {self.change}"


# ------------------------------------------------------------------ making mutants


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for parent, field, index, node in list(_places(tree)):
        for variant, change in _variants(node):
            if isinstance(parent, ast.JoinedStr):
                continue  # Texts are for people.
            line = getattr(node, "lineno", getattr(parent, "lineno", 0))
            ast.copy_location(variant, node)
            _put(parent, field, index, variant)
            code = compile(ast.fix_missing_locations(tree), str(path), "exec")
            _put(parent, field, index, node)
            yield Mutant(path.stem, line, change, code)


def _places(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns") or (field, type(parent)) == (
            "keywords",
            ast.ClassDef,
        ):
            continue
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if isinstance(node, ast.AST) and not _is_settled(parent, node):
                yield parent, field, index, node
                yield from _places(node)


def _is_settled(parent: ast.AST, node: ast.AST) -> bool:
    """True for what is not behaviour: docstrings, imports, named numbers, what no type reaches."""
    match node:
        case ast.AnnAssign():  # Only the fields of data types have annotations here.
            return isinstance(parent, ast.ClassDef)
        case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.match_case(body=[ast.Expr(value=ast.Call(func=ast.Name(id="assert_never")))]):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.isupper() or name.startswith("__")
        case _:
            return False


def _is_nothing(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


def _variants(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield what may stand in the place of a node, and what that is called."""
    for variant in _expressions(node):
        yield variant, f"`{_line(node)}` is `{_line(variant)}`"
    match node:
        case ast.If(test=test, body=body, orelse=orelse):
            for value in (True, False):
                variant = ast.If(ast.Constant(value), body, orelse)
                yield variant, f"`if {_line(test)}` is {'always' if value else 'never'}"
        case ast.Return(value=ast.expr() as value) if not _is_nothing(value):
            yield ast.Return(ast.Constant(None)), f"`return {_line(value)}` returns None"
        case ast.Expr(value=ast.Call() as call):
            yield ast.Pass(), f"`{_line(call)}` is left out"
        case ast.Call(keywords=keywords):
            for i, keyword in enumerate(keywords):
                kept = [*keywords[:i], *keywords[i + 1 :]]
                name = f"`{_line(keyword)}` is left out of `{_line(node.func)}`"
                yield ast.Call(node.func, node.args, kept), name
        case ast.Match(subject=subject, cases=cases):
            for i, case in enumerate(cases):
                if _is_settled(node, case):
                    continue
                kept = [*cases[:i], *cases[i + 1 :]]
                yield ast.Match(subject, kept), f"`case {_line(case.pattern)}` is left out"
        case ast.comprehension(ifs=[_, *_]):
            variant = copy.copy(node)
            variant.ifs = []
            yield variant, f"`if {_line(node.ifs[0])}` is left out"
        case _:
            return


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right):
            for other in _COMPARISONS[type(op)]:
                yield ast.Compare(left, [other()], right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for i in range(len(values)):
                kept = [*values[:i], *values[i + 1 :]]
                yield ast.BoolOp(op, kept) if len(kept) > 1 else kept[0]
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield ast.BinOp(left, _OPERATORS[type(op)](), right)
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield ast.Call(ast.Name(_FUNCTIONS[name], ast.Load()), node.args, node.keywords)
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=str() as value) if _WORD.match(value):
            yield ast.Constant("" if value else "mutant")
        case _:
            return


def _line(node: ast.AST) -> str:
    text = " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


# ------------------------------------------------------------------ running them


class _Importer(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutated module instead of the file's."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != f"treadle.engine.core.{self._mutant.module}":
            return None
        return importlib.util.spec_from_loader(fullname, self)

    def exec_module(self, module: ModuleType) -> None:
        exec(self._mutant.code, module.__dict__)


class _ExamplesFirst:
    """Most mutants fail an example, in a millisecond."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: hasattr(getattr(item, "obj", None), "hypothesis"))
        items.sort(key=lambda item: "any_order" in item.nodeid)


def run_tests(mutant: Mutant | None) -> int:
    """Return what pytest returns for the core's tests, with the mutant in its place."""
    if mutant is not None:
        sys.meta_path.insert(0, _Importer(mutant))
    tests = str(ROOT / "tests" / "core")
    # Nobody reads why a mutant fails, and rewriting assertions takes longer than most tests.
    options = ["-x", "-q", "--assert=plain", "-p", "no:cacheprovider", "-o", "timeout=0"]
    return pytest.main([*options, f"--confcutdir={tests}", tests], plugins=[_ExamplesFirst()])


def start(mutant: Mutant | None) -> int:
    """Fork a child that runs the tests; return its pid."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    signal.setitimer(signal.ITIMER_PROF, MUTANT_CPU_S_MAX)
    signal.alarm(HANGS_S_MAX)
    status = 1
    try:
        status = int(run_tests(mutant))
    finally:
        # pytest says 1 for a failed test; a module that cannot be imported is noticed too.
        os._exit(status)


class Passed(NamedTuple):
    """What became of the mutants."""

    survivors: list[Mutant]
    tried: int
    endless: int
    """Of those that were noticed: the tests did not end with them."""


def run(mutants: list[Mutant], jobs: int, until: float) -> Passed:
    """Try the mutants, as many as there is time for."""
    running: dict[int, Mutant] = {}
    survivors: list[Mutant] = []
    waiting = list(reversed(mutants))
    tried = endless = 0
    while running or (waiting and time.monotonic() < until):
        while waiting and len(running) < jobs and time.monotonic() < until:
            mutant = waiting.pop()
            running[start(mutant)] = mutant
        pid, status = os.wait()
        mutant = running.pop(pid)
        tried += 1
        endless += os.WIFSIGNALED(status)
        if status == 0:
            survivors.append(mutant)
            print(f"survived  {mutant.module}.py:{mutant.line}  {mutant.change}", flush=True)
    return Passed(survivors, tried, endless)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=30, help="stop starting mutants then")
    parser.add_argument("--module", default="", help="only this module of the core")
    parser.add_argument("--only", default="", help="only mutants whose description holds this")
    parser.add_argument("--profile", default="mutation", help="how hard the properties look")
    options = parser.parse_args()
    os.environ["HYPOTHESIS_PROFILE"] = options.profile
    sys.path.insert(0, str(ROOT))
    sys.dont_write_bytecode = True
    _, status = os.waitpid(start(None), 0)
    if status:
        print("the tests fail without any mutant: run `pytest tests/core` first")
        return 2
    paths = sorted(path for path in CORE.glob("*.py") if options.module in ("", path.stem))
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    mutants = [mutant for mutant in mutants if options.only in mutant.name]
    began = time.monotonic()
    survivors, tried, endless = run(mutants, options.jobs, began + options.minutes * 60)
    share = 1 - len(survivors) / max(1, tried)
    explained = EXPLAINED.read_text(encoding="utf-8") if EXPLAINED.exists() else ""
    new = [mutant for mutant in survivors if mutant.name not in explained]
    print(
        f"{tried} of {len(mutants)} mutants tried in {time.monotonic() - began:.0f} s, "
        f"{tried - len(survivors)} noticed ({share:.1%}; {endless} of them did not end), "
        f"{len(survivors)} survived, "
        f"{len(new)} of them unexplained"
    )
    return int(share < KILLED_SHARE_MIN or bool(new) or tried < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
