"""Four agents change a real package: one explores it, one plans, one works, one reviews.

    explore -> plan -> build (the work and its review, in turns) -> report (plain code)

Each run works on a copy of the package. Who explores, plans or reviews cannot write: the policy
refuses it, whatever the model proposes. The work counts as done when the reviewer, who runs the
tests itself, says so; software reads the verdict, and anything but a clear DONE is not one.

Try it, with a model of your choice::

    export ANTHROPIC_API_KEY=... TREADLE_PLAN_MODEL=anthropic:NAME
    treadle dev examples/plan.py
    treadle run start change-package --id change-1 --watch \\
        --input '"Times such as 9:05 are printed as 09:5. Mend it; the tests of the clock say how."'

``TREADLE_PLAN_PACKAGE`` names another package than the ``timetable`` of ``code_repair``, and
``TREADLE_PLAN_WORKSPACES`` the directory for the copies. The code that is changed runs as a
process of yours, without a sandbox, though without the model's key: give it packages, and
models, that you trust.
"""

import asyncio
import difflib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from treadle.sdk.errors import UserError
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.agent import Agent, Budget, ToolContext, ToolRejected, tool
from treadle.worker.agent.plan import PlanResult, PlanWorkflow

MODEL = "TREADLE_PLAN_MODEL"
PACKAGE = Path(__file__).parent / "code_repair" / "timetable"
SUITE_TIMEOUT_S = 120
OUTPUT_CHARS_MAX = 8_000
SHOWN = {".py", ".toml", ".md", ".txt", ".cfg"}
# The edited code runs with this and nothing else, above all without the key of the model.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "SYSTEMROOT")


# ------------------------------------------------------------------ the copy of a run


def package() -> Path:
    """Return the directory that is copied; it is only read."""
    return Path(os.environ.get("TREADLE_PLAN_PACKAGE", "") or PACKAGE)


def workspace(ctx: LoopContext[Any] | TaskContext[Any]) -> Path:
    """Return the run's copy of the package, made when it is first asked for."""
    base = os.environ.get("TREADLE_PLAN_WORKSPACES", "")
    root = Path(base) if base else Path(tempfile.gettempdir()) / "treadle-plan"
    directory = root / ctx.run
    if not directory.exists():
        root.mkdir(parents=True, exist_ok=True)
        # Under another name first: a copy that was cut short is never taken for one.
        made = Path(tempfile.mkdtemp(prefix=".copy-", dir=root))
        ignored = shutil.ignore_patterns(".*", "__pycache__")
        shutil.copytree(package(), made, dirs_exist_ok=True, ignore=ignored)
        try:
            made.rename(directory)
        except OSError:  # Another worker was faster.
            shutil.rmtree(made)
    return directory.resolve()


def files(directory: Path) -> dict[str, str]:
    """Return the text of each file by its path."""
    found = (path for path in sorted(directory.rglob("*")) if path.suffix in SHOWN)
    relative = {path: path.relative_to(directory) for path in found if path.is_file()}
    return {
        name.as_posix(): path.read_text(encoding="utf-8")
        for path, name in relative.items()
        if not any(part.startswith((".", "__pycache__")) for part in name.parts)
    }


def place(directory: Path, path: str) -> Path:
    """Return a file of the copy; raise ``ToolRejected`` for one that lies outside."""
    found = (directory / path).resolve()
    if not found.is_relative_to(directory) or found.suffix not in SHOWN:
        raise ToolRejected(f"{path!r} is no file of the package. Give a path that list_files has.")
    return found


# ------------------------------------------------------------------ what the agents may do


@tool(read_only=True)
async def list_files(ctx: ToolContext[Path]) -> list[str]:
    """List the files of the package."""
    return list(files(ctx.deps))


@tool(read_only=True)
async def read_file(ctx: ToolContext[Path], path: str) -> str:
    """Read one file of the package.

    Args:
        path: Its path, as list_files has it.
    """
    found = place(ctx.deps, path)
    if not found.is_file():
        raise ToolRejected(f"There is no file {path!r}. list_files says which there are.")
    return found.read_text(encoding="utf-8")


@tool(read_only=True)
async def search(ctx: ToolContext[Path], words: str) -> list[str]:
    """Find the lines that hold a text, each as path:number: line."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path, text in files(ctx.deps).items()
        for number, line in enumerate(text.splitlines(), 1)
        if words in line
    ][:200]


@tool(idempotent=True, sequential=True)
async def write_file(ctx: ToolContext[Path], path: str, content: str) -> str:
    """Write a whole file of the package, new or in place of what it was."""
    found = place(ctx.deps, path)
    found.parent.mkdir(parents=True, exist_ok=True)
    found.write_text(content, encoding="utf-8")
    return f"{path} has {len(content.splitlines())} lines now."


# Idempotent, so it is run again after a crash; not read_only, since it runs what was written.
@tool(idempotent=True, sequential=True, timeout=SUITE_TIMEOUT_S + 30)
async def run_tests(ctx: ToolContext[Path], select: str = "") -> dict[str, Any]:
    """Run the package's tests with pytest.

    Args:
        select: Only tests whose names match, as with `pytest -k`; all without it.
    """
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    # A stale .pyc hides an edit of equal size in the same second.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    process = await asyncio.create_subprocess_exec(
        *command,
        *(["-k", select] if select else []),
        cwd=ctx.deps,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), SUITE_TIMEOUT_S)
    except TimeoutError:
        return {"passed": False, "output": f"The tests did not end within {SUITE_TIMEOUT_S} s."}
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    shown = output.decode(errors="replace")[-OUTPUT_CHARS_MAX:]
    return {"passed": process.returncode == 0, "output": shown}


# ------------------------------------------------------------------ the agents and their workflow

READING = [list_files, read_file, search]


def change_package(model: str) -> PlanWorkflow:
    """Return the workflow with its four agents."""

    def agent(name: str, instructions: str, tools: list[Any], max_steps: int) -> Agent[str]:
        budget = Budget(max_steps=max_steps, max_total_tokens=400_000)
        return Agent(name, model=model, instructions=instructions, tools=tools, budget=budget)

    return PlanWorkflow(
        "change-package",
        explorer=agent("explorer", "You explore a small Python package.", READING, 15),
        planner=agent("planner", "You plan a change of a small Python package.", READING, 10),
        implementer=agent(
            "implementer",
            "You change a small Python package. Keep its style, and never work around a test.",
            [*READING, write_file, run_tests],
            25,
        ),
        # It has the means to write; its phase does not let it.
        reviewer=agent(
            "reviewer",
            "You review a change of a small Python package, and trust only what you have run.",
            [*READING, write_file, run_tests],
            15,
        ),
        review_tools={"run_tests"},
        max_review_cycles=2,
    )


def model_name() -> str:
    """Return the model's name from the environment; raise ``UserError`` if there is none."""
    if not (name := os.environ.get(MODEL, "")):
        raise UserError(
            f"{MODEL} is not set, so there is no model to ask; prices and terms differ, so none is "
            f"the default. Set it, e.g. {MODEL}=anthropic:NAME with ANTHROPIC_API_KEY, or "
            f"{MODEL}=openai:NAME@http://127.0.0.1:8080/v1."
        )
    return name


worker = Worker()


@worker.handler("report-change")
async def report(ctx: TaskContext[PlanResult]) -> dict[str, Any]:
    before, after = files(package()), files(workspace(ctx))
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old, new = (each.get(name, "").splitlines(keepends=True) for each in (before, after))
        lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return {
        "verdict": ctx.input.verdict,
        "reviews": ctx.input.reviews,
        "summary": ctx.input.summary,
        "diff": "".join(lines),
    }


if __name__ == "__main__":
    print(__doc__)
else:
    plan = change_package(model_name())
    plan.register(worker, deps=workspace)
    workflow = plan.workflow
    workflow.task("report", "report-change", after=[plan.build])
