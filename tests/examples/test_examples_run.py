"""Each single-file example, as a user runs it: real server, engine and worker processes.

Method: one server and engine for all; a worker process per example; a client starts and asks.
"""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from treadle.sdk.bus.connection import Connection
from treadle.sdk.client import Client, Cron, Http, RunHandle, Subject
from treadle.sdk.errors import RunCancelled, RunFailed, ServerError
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 30


@contextmanager
def _process(
    log: Path, environment: dict[str, str], *arguments: str
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle.cli", *arguments],
            env=environment,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        except BaseException:
            print(log.read_text())
            raise
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server and an engine; the variables that lead to them."""
    directory = tmp_path_factory.mktemp("examples")
    with ExitStack() as stack:
        server = NatsServer.start(directory / "store")
        stack.callback(server.stop)
        environment = dict(os.environ) | {"TREADLE_NATS_URL": server.url}
        stack.enter_context(_process(directory / "engine.log", environment, "engine"))
        yield environment


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.02)


async def _when_registered(
    environment: dict[str, str], workflow: str, play: Callable[[Client], Awaitable[Any]]
) -> Any:
    url = environment["TREADLE_NATS_URL"]

    async def is_registered() -> bool:
        try:
            async with Client.connect(url, "treadle") as client:
                return workflow in await client.workflows()
        except ServerError:
            return False

    await _until(is_registered)
    async with Client.connect(url, "treadle") as client, asyncio.timeout(TIMEOUT_S):
        return await play(client)


def _run(
    environment: dict[str, str],
    log: Path,
    example: str,
    workflow: str,
    play: Callable[[Client], Awaitable[Any]],
) -> Any:
    with _process(log, environment, "worker", str(EXAMPLES / example)):
        return asyncio.run(_when_registered(environment, workflow, play))


def test_hello_greets(environment: dict[str, str], tmp_path: Path) -> None:
    async def play(client: Client) -> Any:
        return await (await client.start("hello", "Ada")).result()

    assert _run(environment, tmp_path / "log", "hello.py", "hello", play) == "Hello, Ada!"


def test_fan_out_joins_what_three_steps_found(environment: dict[str, str], tmp_path: Path) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("text-statistics", "A treadle turns a loom.  It never hurries.")
        return await run.result()

    found = _run(environment, tmp_path / "log", "fan_out.py", "text-statistics", play)
    assert found == "8 words in 2 sentences, the longest is 'treadle'"


def test_a_digest_has_what_came_in_of_its_channel(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> list[Any]:
        for channel, text in (("weather", "rain"), ("trains", "late"), ("weather", "sun")):
            await client.collect("digest", {"channel": channel, "text": text})

        async def are_there() -> bool:
            return len((await client.list_runs(workflow="digest")).runs) == 2

        await _until(are_there)
        runs = (await client.list_runs(workflow="digest")).runs
        return [await client.result(each.id) for each in runs]

    found = _run(environment, tmp_path / "log", "digest.py", "digest", play)
    assert sorted(found) == ["trains, 1 news\n- late", "weather, 2 news\n- rain\n- sun"]


def test_translate_does_each_paragraph_and_leaves_out_what_it_cannot(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("translation", "Good morning.\n\nThe loom turns.\n\n???")
        return await run.result()

    found = _run(environment, tmp_path / "log", "translate.py", "translation", play)
    assert found == "guten Morgen.\n\nder Webstuhl läuft.\n\n(not translated)\n\n1 left out"


def test_a_run_grows_by_what_its_planner_plans(environment: dict[str, str], tmp_path: Path) -> None:
    async def play(client: Client) -> tuple[Any, int]:
        run = await client.start("inspect", {"sites": ["north", "south", "harbour"]})
        result = await run.result()
        return result, len((await run.get()).steps)

    result, steps = _run(environment, tmp_path / "log", "planner.py", "inspect", play)
    assert (result, steps) == ("5 to mend (north: 1, south: 1, harbour: 3)", 6)


def test_agent_loop_takes_one_turn_an_iteration(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> tuple[Any, list[Any]]:
        run = await client.start("guess-number", 617)
        result = await run.result()
        return result, [e.iteration async for e in run.history() if e.kind == "step.continued"]

    result, continued = _run(environment, tmp_path / "log", "agent_loop.py", "guess-number", play)
    assert result["said"] == "617 is correct"
    assert continued == list(range(result["turns"] - 1))


def test_sub_workflow_binds_what_its_runs_have_written(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("book", "Loom")
        result = await run.result()
        started = [child.workflow for child in await run.children()]
        return result, sorted(started)

    result, started = _run(environment, tmp_path / "log", "sub_workflow.py", "book", play)
    assert result["bind"] == "Loom Loom Loom. Loom Loom Loom."
    assert started == ["announcement", "chapter", "chapter"]


def test_flow_control_lets_the_paying_first_and_calls_the_service_no_more_than_it_takes(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """No worker serves while the tickets come, so that all of them wait and the order is theirs."""
    url, service = environment["TREADLE_NATS_URL"], "text-service"
    workflow = runpy.run_path(str(EXAMPLES / "flow_control.py"))["workflow"]

    async def is_registered() -> bool:
        try:
            async with Client.connect(url, "treadle") as client:
                return bool(await client.register(workflow))
        except ServerError:
            return False

    async def start(client: Client, customer: str, plan: str, count: int) -> list[RunHandle]:
        ticket = {"customer": customer, "plan": plan, "text": "How do I log in?"}
        names = [f"{customer}-{n}" for n in range(count)]
        return [await client.start("answer-ticket", ticket, id=name) for name in names]

    async def come(client: Client) -> tuple[list[RunHandle], list[RunHandle]]:
        async def stand() -> tuple[int, int]:
            found = [each for each in await client.limits() if service in each.label]
            slots = [each for each in found if each.kind == "concurrency"]
            return (len(slots[0].holders), slots[0].waiting) if slots else (0, 0)

        async def is_first_waiting() -> bool:
            return await stand() == (2, 1)

        async def are_all_waiting() -> bool:
            return await stand() == (2, 3)

        free = await start(client, "freebie", "free", 6)
        await _until(is_first_waiting)
        paid = await start(client, "acme", "paid", 2)
        await _until(are_all_waiting)
        assert [(await run.get()).status for run in free] == ["running"] * 3 + ["queued"] * 3
        return free, paid

    async def play(client: Client) -> tuple[list[int], list[int]]:
        async def calls(customer: str, count: int) -> list[int]:
            runs = [RunHandle(client, f"{customer}-{n}") for n in range(count)]
            return [(await run.result())["call"] for run in runs]

        return await calls("freebie", 6), await calls("acme", 2)

    asyncio.run(_until(is_registered))
    asyncio.run(_when_registered(environment, "answer-ticket", come))
    free, paid = _run(environment, tmp_path / "log", "flow_control.py", "answer-ticket", play)
    assert sorted(paid) == [3, 4]
    assert sorted(free) == [1, 2, 5, 6, 7, 8]


def test_a_payout_parks_goes_on_fails_and_is_forked_without_a_second_transfer(
    environment: dict[str, str], tmp_path: Path
) -> None:
    bank = tmp_path / "bank-is-open"

    async def play(client: Client) -> tuple[str, str]:
        run = await client.start("payout", {"cents": 4900, "mail": "ana"}, id="p1")

        async def is_parked() -> bool:
            return (await run.get()).status == "parked"

        await _until(is_parked)
        bank.touch()
        await run.resume()
        with pytest.raises(RunFailed, match="'ana' is no mail address"):
            await run.result()
        bank.unlink()
        receipt = "R-4900 at attempt 3"
        fork = await run.fork(
            from_step="notify", input={"mail": "ana@example.org", "receipt": receipt}
        )
        letters = await client.dead_letters.list(run="p1")
        return await fork.result(), letters.letters[0].step

    told = _run(
        {**environment, "PAYOUT_BANK": str(bank)}, tmp_path / "log", "payout.py", "payout", play
    )
    assert told == ("told ana@example.org of R-4900 at attempt 3", "notify")


@pytest.mark.parametrize("approved", [True, False])
def test_approval_waits_for_a_person(
    environment: dict[str, str], tmp_path: Path, approved: bool
) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("announce", "Version 1.0 is out")
        await _until(lambda: _waits_for_the_signal(run))
        await run.signal("decision", {"approved": approved, "by": "Ada"})
        return await run.result()

    if approved:
        text = _run(environment, tmp_path / "log", "approval.py", "announce", play)
        assert text == "Dear all, Version 1.0 is out. (approved by Ada)"
    else:
        with pytest.raises(RunFailed, match="Ada did not approve") as caught:
            _run(environment, tmp_path / "log", "approval.py", "announce", play)
        assert caught.value.step == "publish"


@pytest.mark.parametrize(("cents", "by"), [(25_000, ", allowed by ada"), (500, "")])
def test_sign_off_asks_people_for_large_orders_and_waits_for_the_payment(
    environment: dict[str, str], tmp_path: Path, cents: int, by: str
) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("sale", {"order": 104, "cents": cents})
        if by:
            await _until(lambda: _asks(run))
            await run.approve("allowed", "allowed", by="ada")
        await client.publish_event("order.paid", {"order": 104})
        return await run.result()

    text = _run(environment, tmp_path / "log", "sign_off.py", "sale", play)
    assert text == f"order 104 is on its way{by}"


@pytest.mark.parametrize(
    ("nights", "result"), [(2, "have a good trip: a room, with a seat by road"), (9, "sorry")]
)
def test_a_trip_is_booked_or_apologised_for(
    environment: dict[str, str], tmp_path: Path, nights: int, result: str
) -> None:
    async def play(client: Client) -> Any:
        run = await client.start("trip", {"account": 7, "nights": nights, "remind_s": 0.2})
        return await run.result()

    assert _run(environment, tmp_path / "log", "trip.py", "trip", play) == result


def test_a_trip_that_an_event_cancels_is_undone_the_newest_first(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> Any:
        trip = {"account": 7, "nights": 2, "remind_s": 3600}
        run = await client.start("trip", trip)
        twice = await client.start("trip", trip)

        async def is_asleep() -> bool:
            return (await run.get()).step("remind").status == "active"

        await _until(is_asleep)
        assert await _is(twice, "cancelled")
        await client.publish_event("trip.cancelled", {"account": 7})
        with pytest.raises(RunCancelled, match=r"trip\.cancelled"):
            await run.result()
        return await run.get()

    view = _run(environment, tmp_path / "log", "trip.py", "trip", play)
    undone = {name: view.step(name).started_ms for name in ("unroom", "unseat")}
    assert 0 < undone["unroom"] <= undone["unseat"]


def test_the_newsletter_is_written_at_its_time_and_for_each_message(
    environment: dict[str, str], tmp_path: Path
) -> None:
    async def play(client: Client) -> Any:
        await client.triggers.create("mornings", "newsletter", Cron("0 9 * * mon-fri"), input="all")
        fired = await client.triggers.fire("mornings")
        on = Subject("readers.joined")
        await client.triggers.create("joined", "newsletter", on, lane="newsletter")
        await _publish(environment, "readers.joined", b'"ada"', b'"bob"')

        async def are_there() -> bool:
            page = await client.list_runs(workflow="newsletter", status="completed")
            return len(page.runs) == 3

        await _until(are_there)
        page = await client.list_runs(workflow="newsletter")
        told = [await client.result(view.id) for view in page.runs]
        return await fired.result(), sorted(told)

    found = _run(environment, tmp_path / "log", "newsletter.py", "newsletter", play)
    posted = [f"posted: news for {who}" for who in ("ada", "all", "bob")]
    assert found == ("posted: news for all", posted)


async def _publish(environment: dict[str, str], subject: str, *messages: bytes) -> None:
    settings = Settings(url=environment["TREADLE_NATS_URL"])
    async with await Connection.open(settings, name="publisher") as connection:
        for message in messages:
            connection.publish(subject, message)
        await connection.flush()


def test_a_parcel_is_watched_from_later_on_and_under_newer_versions(
    environment: dict[str, str], tmp_path: Path
) -> None:
    make = runpy.run_path(str(EXAMPLES / "parcel.py"))["parcel"]

    async def play(client: Client) -> Any:
        run = await client.start("parcel", {"number": "JD-104"}, start_after=1)
        await _until(lambda: _is(run, "scheduled"))
        await _until(lambda: _is(run, "parked"))
        await client.register(make(500))

        async def is_under_the_newer_version() -> bool:
            await run.send("watch", "at customs")
            return (await run.get()).step("watch").max_iterations == 500

        await _until(is_under_the_newer_version)
        await run.send("watch", "delivered")
        return await run.result()

    told = _run(environment, tmp_path / "log", "parcel.py", "parcel", play)
    assert told.startswith("parcel JD-104 was delivered, which was look ")
    assert told.endswith(" of at most 500")


async def _is(run: RunHandle, status: str) -> bool:
    return (await run.get()).status == status


async def _asks(run: RunHandle) -> bool:
    return bool(await run.approvals())


async def _waits_for_the_signal(run: RunHandle) -> bool:
    return any(step.doing == "awaiting_signal" for step in (await run.get()).steps)


def test_quote_answers_a_request_and_files_it_afterwards(
    environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "http.log"

    async def play(client: Client) -> tuple[Any, Any]:
        await client.triggers.create("quote", "quote", Http())
        await _until(lambda: _says(log, "listening on "))
        url = log.read_text().partition("listening on ")[2].partition(": ")[0]
        async with httpx2.AsyncClient(trust_env=False) as http:
            told = await http.post(f"{url}/api/quote", json={"looms": 2})
        return told.json(), await client.result(told.headers["treadle-run-id"])

    with _process(log, environment, "http", "--port", "0"):
        found = _run(environment, tmp_path / "log", "quote.py", "quote", play)
    assert found == ({"looms": 2, "total_eur": 900}, "filed a quote of 900 EUR")


async def _says(log: Path, text: str) -> bool:
    return text in log.read_text()


def test_code_repair_makes_no_edit_twice_when_killed_between_checkpoint_and_verdict(
    environment: dict[str, str], tmp_path: Path, model_environment: dict[str, str]
) -> None:
    journal, app = tmp_path / "journal", str(EXAMPLES / "code_repair" / "app.py")
    package = tmp_path / "package"  # Smaller, for speed: two edits repair what one file tests.
    shutil.copytree(EXAMPLES / "code_repair" / "timetable", package)
    for name in ("clock", "room", "span"):
        (package / "tests" / f"test_{name}.py").unlink()
    common = {**environment, **model_environment, "NO_PROXY": "127.0.0.1"}
    common |= {"CODE_REPAIR_JOURNAL": str(journal), "TMPDIR": str(tmp_path)}
    doomed = {**common, "TREADLE_FAILPOINTS": "worker.checkpoint-stored=kill@2"}

    async def play(client: Client) -> Any:
        run = await client.start("code-repair", {"package": str(package)})
        await _until(lambda: _has_ended(first))
        with _process(tmp_path / "second.log", common, "worker", app):
            return await run.result()

    with _process(tmp_path / "first.log", doomed, "worker", app) as first:
        result = asyncio.run(_when_registered(environment, "code-repair", play))
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    started = [(e["iteration"], e["attempt"]) for e in entries if e["what"] == "started"]
    # The dead worker may be given the next attempt too, until the server has seen it die.
    assert started[:2] == [(0, 1), (1, 1)]
    assert len(started) == 3 and started[2] in ((1, 2), (1, 3))
    assert [e["iteration"] for e in entries if e["what"] == "edited"] == [0, 1]
    assert (result["tests"]["passed"], result["tests"]["failed"]) == (2, [])


async def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None


@pytest.mark.parametrize(
    "name", ["hello", "fan_out", "translate", "agent_loop", "approval", "planner", "payout"]
)
def test_an_example_run_by_python_says_how_to_try_it(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py")], capture_output=True, text=True, check=True
    )
    assert f"treadle dev examples/{name}.py" in done.stdout
