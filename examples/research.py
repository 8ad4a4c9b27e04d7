"""An agent answers a question from a small library, with two sub-agents and one budget for all.

    research (agent loop)   lead ──> reader    one for each document, side by side
                                 ──> checker   looks whether a claim is really in its source

The lead plans and writes; it never sees a whole document. What the readers and the checker use
counts against the lead's budget, and each round of their turns is an iteration of its own: a
worker that is killed loses none that was stored.

Try it, with a model of your choice::

    export ANTHROPIC_API_KEY=... TREADLE_RESEARCH_MODEL=anthropic:NAME
    treadle dev examples/research.py
    treadle run start research --id research-1 --watch --input '"Why did the mill burn down?"'

``TREADLE_RESEARCH_MODEL=openai:NAME@URL`` asks any server that speaks chat completions.
"""

import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Field

from treadle.sdk import Retry, Workflow
from treadle.sdk.errors import UserError
from treadle.worker import TaskContext, Worker
from treadle.worker.agent import Agent, Budget, ToolRejected, tool
from treadle.worker.agent.core.state import State

MODEL = "TREADLE_RESEARCH_MODEL"
LIBRARY = {
    "gazette-1887": (
        "The Gazette, 14 March 1887. At ten at night the mill of Messrs. Hallam was found on fire. "
        "The watchman had left his lamp in the carding room, where lint lay deep."
    ),
    "inquest-1887": (
        "Report of the inquest. The lamp of the watchman was found whole and cold at the gate. A "
        "bearing of the main shaft had run dry for a week, and the beams above it were burnt most."
    ),
    "memoir-1921": (
        "Memoir of A. Hallam. Grandfather always said that a spinner he had dismissed had done it. "
        "Nobody else in the town believed so."
    ),
}


class Finding(BaseModel):
    """One claim, and where it stands."""

    claim: str = Field(min_length=1)
    source: str = Field(description='A document\'s id, e.g. "gazette-1887".')


class Report(BaseModel):
    """What the research comes to."""

    answer: str = Field(min_length=1)
    findings: list[Finding] = Field(min_length=1)
    open_questions: list[str] = Field(default_factory=list)


class Claim(BaseModel):
    """What the checker is asked."""

    claim: str
    source: str


# ------------------------------------------------------------------ what they may do


@tool(idempotent=True)
async def list_documents() -> list[str]:
    """Return the ids of all documents in the library."""
    return sorted(LIBRARY)


@tool(idempotent=True)
async def read_document(document: str) -> str:
    """Read one document.

    Args:
        document: Its id, e.g. "gazette-1887".
    """
    if document not in LIBRARY:
        raise ToolRejected(f"There is no document {document!r}: use one of {sorted(LIBRARY)}.")
    return LIBRARY[document]


def cites_the_library(report: Report, state: State) -> str:
    """Accept only sources that are there."""
    unknown = sorted({f.source for f in report.findings if f.source not in LIBRARY})
    return f"There is no document {', '.join(unknown)} in the library." if unknown else ""


def was_checked(report: Report, state: State) -> str:
    """Accept a report only if the checker was asked at least once."""
    return "" if state.executed.get("checker") else "Have the checker look at a claim first."


# ------------------------------------------------------------------ the agents


def lead(model: str) -> Agent[Report]:
    """Return the agent with its sub-agents; they hold no state of any run."""
    reader = Agent(
        "reader",
        model=model,
        description="Reads one document and returns what it says about a question. Name both.",
        instructions="Read the document that you are given, and answer from it alone, briefly.",
        tools=[read_document],
        budget=Budget(max_steps=4),
    )
    checker = Agent(
        "checker",
        model=model,
        description="Looks whether a claim is really in the document that is its source.",
        instructions="Read the source. Say 'supported' or 'not supported', and quote the words.",
        tools=[read_document],
        input_type=Claim,
        budget=Budget(max_steps=4),
    )
    return Agent(
        "lead",
        model=model,
        instructions=(
            "You answer a question from a library. List the documents, have a reader for each at "
            "once, have the checker look at what your answer rests on, then report. Where sources "
            "contradict each other, say so."
        ),
        tools=[list_documents],
        subagents=[reader, checker],
        output_type=Report,
        evidence=[cites_the_library, was_checked],
        # Of all three together.
        budget=Budget(max_steps=30, max_tool_calls=40, max_total_tokens=400_000),
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


workflow = Workflow("research", input=str)
research = workflow.agent_loop(
    "research",
    "research-question",
    # A turn of the lead, or a round of its sub-agents, each.
    max_iterations=40,
    timeout=timedelta(minutes=5),
    retry=Retry(max_attempts=5),
)
workflow.task("cite", "cite-sources", after=[research])

worker = Worker()


@worker.handler("cite-sources")
async def cite(ctx: TaskContext[Report]) -> dict[str, Any]:
    sources = sorted({finding.source for finding in ctx.input.findings})
    return {"answer": ctx.input.answer, "sources": sources}


if __name__ == "__main__":
    print(__doc__)
else:
    worker.agent("research-question", lead(model_name()))
