"""Letters of failed runs: who does their work again, and that it is done once unless asked twice.
Method: a real server, engine and worker; handlers count; who died half-way is played by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.retention import Retention
from treadle.sdk import Retry, RunFailed, Workflow
from treadle.sdk.client import fork_wanted, forking
from treadle.sdk.client.letters import DeadLetterView
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunConflict
from treadle.sdk.messages import LetterMark
from treadle.sdk.tracing import calling
from treadle.worker import TaskContext, Worker


class Shop:
    """Orders whose invoices fail for as many pages as jam."""

    def __init__(self, **step: Any) -> None:
        self.printed: Counter[str] = Counter()
        self.jams = 0
        self.invoice = Workflow("invoice")
        self.invoice.task("print", retry=Retry(max_attempts=1))
        self.order = Workflow("order")
        self.order.sub_workflow("bill", self.invoice, **step)
        self.worker = Worker()

        @self.worker.handler("print")
        async def printer(ctx: TaskContext[Any]) -> str:
            self.printed[ctx.input] += 1
            if self.printed.total() <= self.jams:
                raise ConnectionError("paper jam")
            return "printed"

    async def open(self, stand: Stand) -> None:
        await stand.engine()
        stand.worker(self.worker)
        for workflow in (self.invoice, self.order):
            await stand.client.register(workflow)

    async def fail(self, stand: Stand, workflow: str = "order", count: int = 1) -> None:
        """Run so many until they have failed; whatever is printed after them is."""
        self.jams = 1_000
        await self.open(stand)
        names = [f"{workflow}-{n}" for n in range(count)]
        for name in names:
            await stand.client.start(workflow, name, id=name)
        for name in names:
            with pytest.raises(RunFailed):
                await stand.client.result(name, timeout_s=10)
        self.jams = 0


async def letters(stand: Stand, **wanted: Any) -> dict[str, DeadLetterView]:
    """Return the letters by workflow; there is one of each."""
    page = await stand.client.dead_letters.list(**wanted)
    assert len({each.workflow for each in page.letters}) == len(page.letters)
    return {each.workflow: each for each in page.letters}


def test_a_retry_settles_the_letter_of_its_run_whatever_its_id_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        await shop.fail(stand, "invoice")
        dead = stand.client.dead_letters
        (letter,) = (await dead.list()).letters
        run = stand.client.handle("invoice-0")
        assert "dead_letter" in {each.kind for each in (await run.explain()).reasons}
        again = await run.retry(id="by-hand")
        assert await again.result(timeout_s=10) == "printed"
        assert (await dead.list()).letters == ()
        (done,) = (await dead.list(all=True)).letters
        assert (done.state, done.done, done.replays) == ("replayed", "run by-hand", 1)
        assert done.done_ms == (await again.get()).requested_ms
        assert "dead_letter" not in {each.kind for each in (await run.explain()).reasons}
        with pytest.raises(RunConflict, match=r"was tried again at .*, as run by-hand"):
            await dead.replay(letter.number)
        # A bulk retry knows it too.
        assert (await stand.client.bulk.retry()).counts == {"unchanged": 1}
        assert shop.printed["invoice-0"] == 2
        # Asked again it is a further run, and the one who died before the mark has made that.
        store = Store(stand.js, stand.subjects)
        wanted = fork_wanted.retried("invoice-0-again2", "same")
        await forking.fork(store, "invoice-0", wanted, calling.origin(None))
        made = await dead.replay(letter.number, again=True)
        assert (made.run, made.is_new) == ("invoice-0-again2", False)
        twice = await dead.replay(letter.number, again=True)
        assert (twice.run, twice.is_new) == ("invoice-0-again3", True)
        for each in (made, twice):
            assert await stand.client.result(each.run, timeout_s=10) == "printed"
        assert shop.printed["invoice-0"] == 4
        assert (await dead.get(letter.number)).replays == 3

    play(story)


def test_the_letter_of_a_child_is_left_to_its_parent_and_settled_by_the_parents_retry(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        await shop.fail(stand)
        dead = stand.client.dead_letters
        found = await letters(stand)
        child, parent = found["invoice"], found["order"]
        assert child.parent is not None
        assert (child.parent.run, child.parent.step, child.left_to) == (
            "order-0",
            "bill",
            "order-0",
        )
        assert (parent.parent, parent.left_to) == (None, "")
        with pytest.raises(RunConflict, match="run 'order-0' or below it, which has failed too"):
            await dead.replay(child.number)
        report = await stand.client.bulk.retry()
        assert report.counts == {"done": 1, "covered": 1}
        assert await stand.client.result("order-0-r1", timeout_s=10) == "printed"
        assert shop.printed["order-0"] == 2, "the child is started again once"
        assert (await dead.list()).letters == ()
        settled = (await letters(stand, all=True))["invoice"]
        assert (settled.state, settled.done, settled.left_to) == ("replayed", "run order-0-r1", "")
        assert await dead.get(child.number) == settled
        with pytest.raises(RunConflict, match="its work is done again by run 'order-0-r1'"):
            await dead.replay(child.number)
        assert (await stand.client.bulk.retry()).counts == {"unchanged": 1, "covered": 1}
        # Whoever wants it in any case is not held up.
        made = await dead.replay(child.number, again=True)
        assert made.run == f"{child.run}-r1"
        await stand.client.result(made.run, timeout_s=10)
        assert shop.printed["order-0"] == 3

    play(story)


@pytest.mark.slow
def test_a_child_whose_failure_was_handled_has_an_open_letter_and_is_retried_itself(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        shop.order = Workflow("order")
        billed = shop.order.sub_workflow(
            "bill", shop.invoice, on_failure=shop.order.task("excuse", "ship")
        )
        shop.order.task("ship", after=shop.order.task("pack", "ship"))
        shipped: Counter[str] = Counter()

        @shop.worker.handler("ship")
        async def ship(ctx: TaskContext[Any]) -> str:
            shipped[ctx.step] += 1
            if ctx.step == "ship" and shipped["ship"] == 1:
                # The other branch is over by then.
                await stand.until(
                    "the excuse is made",
                    lambda: stand.document(ctx.run),
                    lambda run: (
                        run is not None
                        and "excuse" in run.steps
                        and run.steps["excuse"].status == "completed"
                    ),
                )
                raise ValueError("no ship")
            return ctx.step

        assert billed is not None
        await shop.fail(stand)
        found = await letters(stand)
        assert found["order"].step == "ship"
        assert found["invoice"].left_to == ""
        report = await stand.client.bulk.retry()
        assert report.counts == {"done": 2}
        await stand.client.result("order-0-r1", timeout_s=10)
        assert await stand.client.result(f"{found['invoice'].run}-r1", timeout_s=10) == "printed"
        assert shop.printed["order-0"] == 2
        assert shipped == {"excuse": 1, "pack": 1, "ship": 2}
        assert (await stand.client.dead_letters.list()).letters == ()

    play(story)


@pytest.mark.slow
def test_an_attempt_that_was_followed_by_another_one_leaves_no_open_letter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop(retry=Retry(max_attempts=2, delay_s=0.01))
        shop.jams = 1
        await shop.open(stand)
        run = await stand.client.start("order", "x", id="order-0")
        assert await run.result(timeout_s=10) == "printed"
        dead = stand.client.dead_letters
        assert (await dead.list()).letters == ()
        (letter,) = (await dead.list(all=True)).letters
        second = next(each.id for each in await run.children() if each.status == "completed")
        assert letter.done == f"run {second}"
        report = await stand.client.bulk.retry()
        assert report.counts == {"unchanged": 1}
        assert shop.printed["x"] == 2

    play(story)


@pytest.mark.slow
def test_a_run_that_fails_under_an_id_that_is_used_again_has_a_letter_of_its_own(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        await shop.fail(stand, "invoice")
        first = (await letters(stand))["invoice"]
        await stand.client.dead_letters.discard(first.number)
        await Retention(stand.js, stand.subjects)._delete(await stand.ended("invoice-0"))
        shop.jams = 1_000
        await stand.client.start("invoice", "invoice-0", id="invoice-0")
        with pytest.raises(RunFailed):
            await stand.client.result("invoice-0", timeout_s=10)
        second = (await letters(stand))["invoice"]
        assert second.number > first.number and second.state == "open"

    play(story)


@pytest.mark.slow
def test_what_was_discarded_stays_so_when_its_run_is_tried_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        await shop.fail(stand, "invoice")
        dead = stand.client.dead_letters
        letter = (await letters(stand))["invoice"]
        await dead.discard(letter.number, "no matter")
        again = await stand.client.retry("invoice-0")
        await again.result(timeout_s=10)
        assert (await dead.get(letter.number)).done == "no matter"
        stored = await stand.js.last(
            stand.subjects.dead_stream, stand.subjects.letter_marks("invoice", "invoice-0")
        )
        assert stored is not None
        assert msgspec.json.decode(stored.data, type=LetterMark).count == 0

    play(story)
