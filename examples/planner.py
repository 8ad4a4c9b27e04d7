"""A run that grows: a step plans what is to be done, and the plan becomes part of the run.

    plan (planner) -> check (task) x n, in parallel -> sum-up -> report

The planner here is plain code; a model would be asked in its place. It sees what is wrong with a
plan in ``ctx.last_failure`` and plans again.

Try it::

    treadle dev examples/planner.py
    treadle run start inspect --wait --input '{"sites": ["north", "south", "harbour"]}'
"""

from typing import Any

from treadle.sdk import Retry, Workflow
from treadle.worker import TaskContext, Worker

workflow = Workflow("inspect")
plan = workflow.planner(
    "plan",
    "plan-inspection",
    max_steps=50,
    allowed_tasks=["check-site", "sum-up"],
    retry=Retry(max_attempts=3),
)
workflow.task("report", after=plan)

worker = Worker()


@worker.handler("plan-inspection")
async def plan_inspection(ctx: TaskContext[dict[str, list[str]]]) -> dict[str, Any]:
    """Plan a check of each site, and a step that sums the checks up."""
    sites = ctx.input["sites"]
    checks = [{"kind": "task", "id": f"check-{site}", "type": "check-site"} for site in sites]
    after = [check["id"] for check in checks]
    summary = {"kind": "task", "id": "summary", "type": "sum-up", "after": after}
    inputs = {f"check-{site}": {"site": site} for site in sites}
    return {"steps": [*checks, summary], "inputs": inputs | {"summary": sites}}


@worker.handler("check-site")
async def check_site(ctx: TaskContext[dict[str, str]]) -> int:
    """Count what there is to mend."""
    return len(ctx.input["site"]) % 4


@worker.handler("sum-up")
async def sum_up(ctx: TaskContext[dict[str, Any]]) -> dict[str, int]:
    """Sum up: the plan's input is beside the outputs of the steps before."""
    outputs = ctx.input["steps"]
    return {site: outputs[f"check-{site}"] for site in ctx.input["input"]}


@worker.handler("report")
async def report(ctx: TaskContext[dict[str, int]]) -> str:
    """Say what the plan came to: it is given the output of the plan's last step."""
    found = ", ".join(f"{site}: {count}" for site, count in ctx.input.items())
    return f"{sum(ctx.input.values())} to mend ({found})"


if __name__ == "__main__":
    print(__doc__)
