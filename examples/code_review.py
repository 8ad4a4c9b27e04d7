"""A model reviews the changes of a branch, and plain code publishes what it found.

    fetch (git diff) -> review (agent loop: one turn of the model is one iteration) -> publish

The agent reads the diff, and whatever else of the repository it asks for, at the very commit that
was fetched. Software decides what counts: a remark has to stand on a line that the diff shows,
and a change with a blocking remark cannot be approved.

Try it, in a git repository with a branch, with a model of your choice::

    export ANTHROPIC_API_KEY=... TREADLE_REVIEW_MODEL=anthropic:NAME
    treadle dev path/to/examples/code_review.py
    treadle run start code-review --id review-1 --watch --input '{"base": "main", "head": "HEAD"}'

The review is written to ``reviews/`` of the working directory, or to ``TREADLE_REVIEW_OUTPUT``.
``TREADLE_REVIEW_REPOSITORY`` names another repository than that of the working directory.
"""

import asyncio
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field

from treadle.sdk import NonRetryable, Retry, Workflow
from treadle.sdk.errors import UserError
from treadle.worker import TaskContext, Worker
from treadle.worker.agent import Agent, Budget, ToolContext, ToolRejected, tool
from treadle.worker.agent.core.state import State

MODEL = "TREADLE_REVIEW_MODEL"
DIFF_CHARS_MAX = 100_000
"""About 30,000 tokens. What is longer should be reviewed in parts."""
HITS_MAX = 100


class Request(BaseModel):
    """Input of a run: what is reviewed."""

    base: str = "main"
    head: str = "HEAD"


class Change(BaseModel):
    """What was fetched."""

    head: str = Field(description="The commit.")
    diff: str


class Remark(BaseModel):
    """One thing that a reviewer says about a line."""

    path: str
    line: int = Field(ge=1, description="Number of the line in the new file.")
    severity: Literal["blocking", "minor"]
    text: str


class Review(BaseModel):
    """What the agent comes to."""

    summary: str
    decision: Literal["approve", "request_changes"]
    remarks: list[Remark]


class Parts(BaseModel):
    """Input of the last step: the outputs of the two before it."""

    fetch: Change
    review: Review


# ------------------------------------------------------------------ git


class Checkout(NamedTuple):
    """The repository, and the name under which it keeps the commit of a run."""

    repository: Path
    ref: str


def checkout(ctx: TaskContext[Any]) -> Checkout:
    """Return what a run reviews: the same for each of its iterations, on any worker."""
    repository = Path(os.environ.get("TREADLE_REVIEW_REPOSITORY", "") or ".").resolve()
    return Checkout(repository, f"refs/treadle/{ctx.run}")


async def git(repository: Path, *arguments: str) -> tuple[int, str]:
    """Run git; return its exit code and what it wrote."""
    process = await asyncio.create_subprocess_exec(
        "git",
        "-C",
        str(repository),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")


def lines_of(diff: str) -> dict[str, set[int]]:
    """Return the lines of the new files that a diff shows, by path."""
    shown: dict[str, set[int]] = {}
    path, number = "", 0
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif hunk := re.match(r"@@ -\S+ \+(\d+)", line):
            number = int(hunk[1])
        elif path and line[:1] in ("+", " "):
            shown.setdefault(path, set()).add(number)
            number += 1
        elif line.startswith("diff "):
            path = ""
    return shown


# ------------------------------------------------------------------ what it may do


@tool(read_only=True)
async def read_file(ctx: ToolContext[Checkout], path: str) -> str:
    """Read one file as it is after the change, with the numbers of its lines.

    Args:
        path: Its path from the root of the repository.
    """
    code, text = await git(ctx.deps.repository, "show", f"{ctx.deps.ref}:{path}")
    if code:
        raise ToolRejected(f"There is no file {path!r} after the change. Look at the path again.")
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(text.splitlines(), 1))


@tool(read_only=True)
async def search(ctx: ToolContext[Checkout], words: str) -> list[str]:
    """Find the lines of the repository that hold a text, each as path:number:line."""
    found = ("grep", "-n", "-I", "--fixed-strings", "-e", words, ctx.deps.ref)
    code, text = await git(ctx.deps.repository, *found)
    if code > 1:
        raise ToolRejected(f"git could not search for {words!r}: {text.strip()[:300]}")
    return [line.removeprefix(f"{ctx.deps.ref}:") for line in text.splitlines()[:HITS_MAX]]


# ------------------------------------------------------------------ when it is done


def goal(given: dict[str, str]) -> str:
    """Return what the agent is asked, from what was fetched."""
    return f"Review this change.\n\n<diff>\n{given['diff']}\n</diff>"


def stands_on_the_diff(review: Review, state: State) -> str:
    """Accept only remarks about lines that the diff shows, as it stands in the goal."""
    asked = "\n".join(block.get("text", "") for block in state.messages[0]["content"])
    shown = lines_of(asked)
    astray = [
        f"{remark.path}:{remark.line}"
        for remark in review.remarks
        if remark.line not in shown.get(remark.path, ())
    ]
    if not astray:
        return ""
    return f"The diff does not show {', '.join(astray)}. Remark on its lines only."


def fits_the_remarks(review: Review, state: State) -> str:
    """Accept only a decision that follows from the remarks."""
    blocking = any(remark.severity == "blocking" for remark in review.remarks)
    if blocking == (review.decision == "request_changes"):
        return ""
    return "Changes are requested if, and only if, a remark is blocking."


def reviewer(model: str) -> Agent[Review]:
    """Return the agent; it holds no state of any run."""
    return Agent(
        "code-reviewer",
        model=model,
        instructions=(
            "You review a change of a repository. Read what the diff touches before you judge it. "
            "Remark on what is wrong or will break, not on taste; a remark is blocking if the "
            "change should not go out with it."
        ),
        tools=[read_file, search],
        output_type=Review,
        evidence=[stands_on_the_diff, fits_the_remarks],
        budget=Budget(max_steps=8, max_tool_calls=30, max_total_tokens=300_000),
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


# ------------------------------------------------------------------ the workflow

workflow = Workflow("code-review", input=Request)
fetch = workflow.task("fetch", "fetch-diff", retry=Retry(max_attempts=5))
review = workflow.agent_loop(
    "review",
    "llm-review",
    after=[fetch],
    max_iterations=10,
    max_duration=timedelta(minutes=5),
    loop_delay=timedelta(milliseconds=500),
    timeout=timedelta(seconds=60),
    retry=Retry(max_attempts=5),
)
workflow.task("publish", "publish-review", after=[fetch, review])

worker = Worker()


@worker.handler("fetch-diff")
async def fetch_diff(ctx: TaskContext[Request]) -> Change:
    repository, ref = checkout(ctx)
    # Kept under a name: the branch may move on, and the commit could be collected.
    code, text = await git(repository, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    if code:
        head = f"{ctx.input.head}^{{commit}}"
        code, text = await git(repository, "rev-parse", "--verify", "--end-of-options", head)
        if code:
            raise NonRetryable(f"{ctx.input.head!r} is no commit of {repository}: {text.strip()}")
        await git(repository, "update-ref", ref, text.strip())
    between = ("diff", "--no-ext-diff", "--no-color", "--merge-base", "--end-of-options")
    code, diff = await git(repository, *between, ctx.input.base, ref)
    if code:
        raise NonRetryable(f"{ctx.input.base!r} cannot be compared with it: {diff.strip()}")
    if not diff.strip() or len(diff) > DIFF_CHARS_MAX:
        raise NonRetryable(
            f"the change has {len(diff)} characters; a review needs some, and at most "
            f"{DIFF_CHARS_MAX}. Look at base and head, or review it in parts."
        )
    return Change(head=text.strip(), diff=diff)


@worker.handler("publish-review")
async def publish(ctx: TaskContext[Parts]) -> dict[str, Any]:
    found, change = ctx.input.review, ctx.input.fetch
    lines = [f"# Review of {change.head[:12]}: {found.decision}", "", found.summary, ""]
    lines += [f"- `{r.path}:{r.line}` ({r.severity}) {r.text}" for r in found.remarks]
    output = Path(os.environ.get("TREADLE_REVIEW_OUTPUT", "") or "reviews")
    output.mkdir(parents=True, exist_ok=True)
    # Named by the run and put in place at once: published twice, it is there once.
    target, partial = output / f"{ctx.run}.md", output / f".{ctx.run}.{ctx.attempt}"
    partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.replace(target)
    repository, ref = checkout(ctx)
    await git(repository, "update-ref", "-d", ref)
    return {"published": target.name, "decision": found.decision, "remarks": len(found.remarks)}


if __name__ == "__main__":
    print(__doc__)
else:
    worker.agent("llm-review", reviewer(model_name()), goal=goal, deps=checkout)
