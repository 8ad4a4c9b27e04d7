"""Who does the work of a failed run again: each way in which a child stands to its parent.

A real server, no engine: documents are written as an engine leaves them.
"""

from __future__ import annotations

from typing import Any

from tests.client.stage import Stage, play

from treadle.sdk import Workflow
from treadle.sdk.children import ParentRun, child_id
from treadle.sdk.client.bulk import BulkOutcome
from treadle.sdk.client.lineage import ALONE, Heir, Lineage
from treadle.sdk.client.store import Store
from treadle.sdk.messages import Failure, Fork
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings

BROKEN = Failure("ValueError", "closed", retryable=False)


class Families:
    """Runs of ``order``: its step ``bill`` starts ``invoice``, and ``ship`` comes after that."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.hash = ""

    async def register(self) -> None:
        invoice = Workflow("invoice")
        invoice.task("render")
        order = Workflow("order")
        billed = order.sub_workflow("bill", invoice, on_failure=order.task("excuse"))
        order.task("ship", after=billed)
        await self.stage.client.register(invoice)
        self.hash = await self.stage.client.register(order)

    async def order(self, run: str, bill: StepEntry, **fields: Any) -> ParentRun:
        """Write a run of ``order``; return what its child is told of it."""
        steps = {"bill": bill, **fields.pop("steps", {})}
        fields = {"status": "failed", "failed_step": "bill", "failure": BROKEN, **fields}
        await self.stage.document(
            run, workflow="order", definition=self.hash, requested=7, steps=steps, **fields
        )
        return ParentRun(run=run, step="bill", root=run)

    async def invoice(self, link: ParentRun, **fields: Any) -> str:
        """Write its child, which has failed."""
        run = child_id(link.run, 7, link.step, link.attempt)
        fields = {"status": "failed", "failed_step": "render", "failure": BROKEN, **fields}
        steps = {"render": StepEntry("failed")}
        await self.stage.document(run, workflow="invoice", parent=link, steps=steps, **fields)
        return run


def story_of(settings: Settings, story: Any) -> None:
    async def on_stage(stage: Stage) -> None:
        families = Families(stage)
        await families.register()
        await story(stage, families)

    play(settings, on_stage)


def failed(attempt: int = 1) -> StepEntry:
    return StepEntry("failed", attempt=attempt)


def test_the_work_of_a_failed_child_is_done_again_by_whoever_begins_its_step_again(
    settings: Settings,
) -> None:
    async def story(stage: Stage, families: Families) -> None:
        lineage = Lineage(Store(stage.js, stage.subjects))

        async def heir(link: ParentRun) -> Heir:
            return await lineage.heir(child_id(link.run, 7, link.step, link.attempt), link)

        # The parent has failed by it: a retry of the parent begins the step again.
        link = await families.order("fails", failed())
        found = await heir(link)
        assert (found.standing, found.run, found.failed) == ("inherited", "fails", "fails")
        # It has handled the failure, and completed, or failed by another step.
        handled = {"excuse": StepEntry("completed")}
        link = await families.order("ends", failed(), steps=handled, status="completed")
        assert await heir(link) == ALONE
        link = await families.order(
            "ships",
            failed(),
            steps={**handled, "ship": StepEntry("failed")},
            failed_step="ship",
        )
        assert await heir(link) == ALONE
        # It goes on after the failure, or has not heard of it.
        link = await families.order("goes-on", failed(), steps=handled, status="running")
        assert await heir(link) == ALONE
        link = await families.order("waits", StepEntry("active", attempt=1), status="running")
        assert (await heir(link))[:2] == ("awaited", "waits")
        # The step has begun its next attempt, whatever came of that.
        for name, status in (("second", "running"), ("over", "completed"), ("both", "failed")):
            link = await families.order(name, failed(2), status=status)
            assert (await heir(link))[:2] == ("superseded", child_id(name, 7, "bill", 2))
        # A retry of the parent has begun it again, or has kept it as it ended.
        link = await families.order("tried", failed())
        await families.order("tried-r1", failed(), fork=Fork("tried", is_retry=True))
        assert (await heir(link))[:2] == ("retried", "tried-r1")
        link = await families.order("kept", failed())
        await families.order(
            "kept-r1", failed(), fork=Fork("kept", is_retry=True, kept={"bill": 3})
        )
        assert await heir(link) == ALONE
        # A detached child is its own; and an id may be another run's by now.
        link = await families.order("sends", failed())
        detached = ParentRun(run="sends", step="bill", root="sends", detached=True)
        assert await heir(detached) == ALONE
        assert await lineage.heir("somebody-else", link) == ALONE
        assert await heir(ParentRun(run="gone", step="bill", root="gone")) == ALONE

    story_of(settings, story)


def test_what_is_done_again_of_a_parent_is_done_again_of_its_children(settings: Settings) -> None:
    async def story(stage: Stage, families: Families) -> None:
        lineage = Lineage(Store(stage.js, stage.subjects))
        for top, kind in (
            (failed(), "inherited"),
            (failed(2), "superseded"),
            (StepEntry("active", attempt=1), "awaited"),
        ):
            name = f"top-{kind}"
            status = "running" if kind == "awaited" else "failed"
            above = await families.order(name, top, status=status)
            middle = child_id(name, 7, "bill", 1)
            link = await families.order(middle, failed(), parent=above)
            found = await lineage.heir(child_id(middle, 7, "bill", 1), link)
            who = child_id(name, 7, "bill", 2) if kind == "superseded" else name
            assert (found.standing, found.run) == (kind, who)

    story_of(settings, story)


def test_a_bulk_retry_leaves_a_child_to_its_parent_only_if_that_starts_it_again(
    settings: Settings,
) -> None:
    async def story(stage: Stage, families: Families) -> None:
        covered = await families.invoice(await families.order("fails", failed()))
        handled = {"excuse": StepEntry("completed"), "ship": StepEntry("failed")}
        own = await families.invoice(
            await families.order("ships", failed(), steps=handled, failed_step="ship")
        )
        older = await families.invoice(await families.order("second", failed(2)))
        link = await families.order("waits", StepEntry("active", attempt=1), status="running")
        waits = await families.invoice(link)
        seen: dict[str, BulkOutcome] = {}

        async def would(**wanted: Any) -> dict[str, int]:
            seen.clear()
            report = await stage.client.bulk.retry(
                dry_run=True, each=lambda each: seen.update({each.run: each}), **wanted
            )
            return report.counts

        counts = await would()
        assert counts == {"would": 4, "covered": 1, "unchanged": 1, "refused": 1}
        assert (seen[covered].result, seen[covered].parent) == ("covered", "fails")
        assert (seen[own].result, seen[own].parent) == ("would", "")
        assert seen[older].made == child_id("second", 7, "bill", 2)
        assert "'waits', which has not heard of its end yet" in seen[waits].error
        # Its parent does not match: the child is retried itself, and says who would do the same.
        await would(workflow="invoice")
        assert (seen[covered].result, seen[covered].parent) == ("would", "fails")
        # Its parent was retried before, by whatever call.
        await families.order("fails-r1", failed(), fork=Fork("fails", is_retry=True))
        await would(workflow="invoice")
        assert (seen[covered].result, seen[covered].parent) == ("covered", "fails-r1")
        assert (await would(workflow="order"))["unchanged"] == 1
        assert seen["fails"].made == "fails-r1"

    story_of(settings, story)
