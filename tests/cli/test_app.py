"""Finding workflows and the worker in a user's file.

Each test writes a file and loads it in this process.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.cli.app import file_of, load, worker_of
from treadle.sdk import InvalidDefinition, UserError

HELLO = """
from treadle.sdk import Workflow
from treadle.worker import Worker

workflow = Workflow("hello")
workflow.task("greet")
worker = Worker()

@worker.handler("greet")
async def greet(ctx):
    return "hi"
"""


@pytest.fixture(autouse=True)
def clean_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test imports from its own directory, and leaves nothing behind."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_gives_its_workflows_and_its_worker(tmp_path: Path) -> None:
    (tmp_path / "hello_app.py").write_text(f"{HELLO}\nsame = worker\nalso = workflow\n")
    app = load("hello_app.py")
    assert [workflow.name for workflow in app.workflows] == ["hello"]
    assert [*worker_of(app).handlers] == ["greet"]
    assert file_of("hello_app.py") == tmp_path / "hello_app.py"


def test_a_module_and_a_single_name_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "parts.py").write_text("NAME = 'hello'\n")
    text = HELLO.replace('Workflow("hello")', "Workflow(NAME)") + "other = Worker()\n"
    (tmp_path / "shop" / "tasks.py").write_text(f"from .parts import NAME\n{text}")
    for source in ("shop.tasks", "shop/tasks.py"):
        app = load(source)
        assert [workflow.name for workflow in app.workflows] == ["hello"]
        with pytest.raises(UserError, match=f"2 Workers: worker, other.*`{source}:worker`"):
            worker_of(app)
        assert [*worker_of(load(f"{source}:worker")).handlers] == ["greet"]
    with pytest.raises(UserError, match="has no 'nothing'"):
        load("shop.tasks:nothing")


def test_a_file_named_like_a_module_of_python_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(HELLO)
    assert load("queue.py").workers
    import queue

    assert hasattr(queue, "SimpleQueue")


def test_a_file_without_a_worker_says_what_to_add(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"no Worker.*`worker = Worker\(\)`"):
        worker_of(load("empty.py"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = (\n", "line 1"),
        ("\nprint(undefined_name)\n", "NameError.*\n.*line 2"),
        ("raise ValueError('no key')\n", "ValueError: no key"),
        ("import not_installed_here\n", "ModuleNotFoundError.*not_installed_here"),
        ("\nimport sys\nsys.exit()\n", r"ended the process with SystemExit\(None\) at line 3"),
        ("raise SystemExit(0)\n", r"SystemExit\(0\) at line 1\n(.|\n)*__main__"),
        ("raise GeneratorExit\n", "GeneratorExit\n.*line 1"),
        ("import asyncio\nraise asyncio.CancelledError\n", "CancelledError\n.*line 2"),
        ("raise BaseException('odd')\n", "BaseException: odd\n"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n",
            r"E: \(its text cannot be read: ValueError\)",
        ),
        ("raise ValueError('x' * 1_000_000)\n", "characters left out"),
    ],
)
def test_a_file_that_cannot_be_imported_shows_the_user_their_own_line(
    tmp_path: Path, text: str, says: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(UserError, match=f"broken.py cannot be imported(.|\n)*{says}") as caught:
        load("broken.py")
    assert "importlib" not in str(caught.value)
    assert len(str(caught.value)) < 4_000
    assert "broken" not in sys.modules


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("treadle.worker.agent", "docstring_parser", "agent"),
        ("treadle.worker.agent.pydantic_ai", "pydantic_ai", "pydantic-ai"),
    ],
)
def test_a_missing_extra_is_named_below_the_users_line_and_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    (tmp_path / "agents.py").write_text(f"\nfrom {module} import Agent\n")
    with pytest.raises(UserError, match=rf"{package}'.*Install treadle\[{extra}\]") as caught:
        load("agents.py")
    assert _lines_named(caught.value) == ["agents.py"]


def test_a_refused_handler_is_told_with_the_users_line_and_none_of_treadles(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(
        f"{HELLO}\n@worker.handler('other')\nasync def other(ctx: int): return 1\n"
    )
    with pytest.raises(UserError, match="its argument is a context") as caught:
        load("typed.py")
    assert _lines_named(caught.value) == ["typed.py"]


def _lines_named(error: UserError) -> list[str]:
    return [Path(name).name for name in re.findall(r'  File "(.+?)"', str(error))]


def test_a_missing_file_and_an_unsound_workflow_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.py is not a file in"):
        load("missing.py")
    (tmp_path / "unsound.py").write_text(
        "from treadle.sdk import Workflow\n"
        "workflow = Workflow('w')\nworkflow.task('a', after='b')\n"
    )
    with pytest.raises(InvalidDefinition, match="'b'"):
        load("unsound.py")
