"""``treadle approvals`` and the words of ``treadle run``: what they print, store and exit with.

The entry point on a real server; no engine runs, what one would write is written by hand.
"""

from __future__ import annotations

import asyncio
import getpass
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, open_stage, parked, raw

from treadle.cli import approving, exits
from treadle.sdk import Workflow
from treadle.sdk.asks import Ask, Reply
from treadle.sdk.messages import Failure
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings

PAY = Ask(
    id="toolu_1",
    kind="approval",
    tool="pay",
    input=raw({"to": "ann", "cents": 500}),
    args_hash="ab" * 32,
    asked_ms=1_000,
    to="finance-lead",
    level=1,
    text="It is a lot.",
)
WHICH = Ask(id="outer/q", text="Which colour?", options=("red", "blue"), asked_ms=2_000)
Told = Callable[[], list[Any]]


@pytest.fixture
def waits(settings: Settings) -> Callable[..., Told]:
    """Let a run wait with asks; return a function that reads the replies it has got."""

    def waits(*asks: Ask, run: str = "r1") -> Told:
        async def write(stage: Stage) -> None:
            version = await stage.client.register(chain())
            entry = StepEntry("parked", 1, 1_000, failure=Failure("waiting", "people", False))
            await stage.document(run, definition=version, status="parked", steps={"loop": entry})
            register = msgspec.structs.replace(parked("people"), waits=True, asks=asks)
            await stage.register(run, "loop", "think", register)

        async def read(stage: Stage) -> list[Any]:
            return [
                (event.name.split()[0], msgspec.json.decode(event.value))
                async for event in stage.client.history(run)
                if event.kind == "run.message"
            ]

        def played(story: Callable[[Stage], Awaitable[Any]]) -> Any:
            async def on_stage() -> Any:
                async with open_stage(settings) as stage:
                    return await story(stage)

            return asyncio.run(on_stage())

        played(write)
        return lambda: played(read)

    return waits


@pytest.mark.slow
def test_what_is_asked_is_listed_and_shown_with_the_next_command(treadle: Run, waits: Any) -> None:
    waits(PAY, WHICH)
    listed = treadle("approvals", "list")
    rows = listed.out.splitlines()
    assert rows[1].startswith("toolu_1") and rows[2].startswith("outer/q")
    assert "finance-lead" in rows[1] and 'pay({"to":"ann","cents":500})' in rows[1]
    found = treadle("approvals", "list", "--run", "r1", "--json").lines
    assert [each["ask"]["id"] for each in found] == ["toolu_1", "outer/q"]
    assert (found[0]["run"], found[0]["step"], found[0]["workflow"]) == ("r1", "loop", "flow")

    shown = treadle("approvals", "show", "toolu_1").out
    assert '"cents": 500' in shown and "for finance-lead" in shown and "It is a lot." in shown
    command = "treadle approvals approve toolu_1 --run r1 --hash abababababab"
    assert command in shown
    assert command in treadle("run", "show", "r1").out
    assert "red | blue" in treadle("approvals", "show", "outer/q").out
    assert treadle("approvals", "show", "toolu_1", "--json").json["ask"]["tool"] == "pay"
    assert treadle("approvals", "list", "--run", "r1").code == 0


def test_nothing_asked_is_said_beside_the_result(treadle: Run, waits: Any) -> None:
    waits()
    empty = treadle("approvals", "list")
    assert empty.out == "" and "nothing is asked" in empty.err
    assert treadle("approvals", "list", "--json").out == ""
    assert "`treadle approvals list`" in treadle("approvals", "show", "x", code=exits.USAGE).err
    treadle("approvals", "list", "--run", "none", code=exits.UNKNOWN)


def test_an_approval_is_stored_once_with_who_gave_it(treadle: Run, waits: Any) -> None:
    told = waits(PAY, WHICH)
    approve = ("approvals", "approve", "toolu_1", "--hash", "abababababab", "--text", "ok")
    assert "approved: pay toolu_1" in treadle(*approve).out
    again = treadle(*approve, "--run", "r1", "--json").json
    assert (again["run"], again["step"], again["answer"]) == ("r1", "loop", "approved")
    ((kind, reply),) = told()
    assert kind == "reply"
    assert msgspec.convert(reply, Reply) == Reply(
        call_id="toolu_1",
        verdict="approve",
        args_hash=PAY.args_hash,
        text="ok",
        by=getpass.getuser(),
    )
    refused = treadle("approvals", "reject", "toolu_1", "--by", "bob", code=exits.CONFLICT)
    assert "it was approved" in refused.err and "first answer counts" in refused.err
    assert len(told()) == 1


def test_a_run_that_has_ended_says_how_and_takes_no_decision(
    treadle: Run, settings: Settings
) -> None:
    workflow = Workflow("flow")
    first = workflow.agent_loop("first", "think", max_iterations=5)
    workflow.approval("gate", prompt="OK?", after=first)

    async def story() -> None:
        async with open_stage(settings) as stage:
            version = await stage.client.register(workflow)
            steps = {"first": StepEntry("failed")}
            await stage.document("r1", definition=version, status="failed", steps=steps)

    asyncio.run(story())
    late = ("approvals", "approve", "gate", "--run", "r1")
    told = treadle(*late, code=exits.CONFLICT).err
    assert "run 'r1' has ended as failed, and never came to step 'gate'." in told
    told = treadle("approvals", "approve", "call", "--run", "r1", code=exits.CONFLICT).err
    assert "run 'r1' has ended as failed, and asks nothing any more." in told


def test_a_rejection_and_an_answer_say_what_they_say(treadle: Run, waits: Any) -> None:
    told = waits(PAY, WHICH)
    treadle("approvals", "reject", "toolu_1", "--text", "Too much.", "--by", "ada")
    treadle("approvals", "answer", "outer/q", "--text", "blue", "--run", "r1")
    replies = [reply for _, reply in told()]
    assert [(r["verdict"], r["text"]) for r in replies] == [
        ("reject", "Too much."),
        ("answer", "blue"),
    ]
    assert replies[0]["by"] == "ada"


@pytest.mark.slow
def test_an_answer_about_other_arguments_is_refused(treadle: Run, waits: Any) -> None:
    told = waits(PAY, WHICH)
    for verb in ("approve", "reject"):
        refused = treadle("approvals", verb, "toolu_1", "--hash", "cdcdcdcdcdcd", code=7)
        assert "abababababab" in refused.err and "cdcdcdcdcdcd" in refused.err
    treadle("approvals", "approve", "toolu_1", "--hash", "ab", code=exits.USAGE)
    treadle("approvals", "approve", "outer/q", code=exits.USAGE)
    assert told() == []


@pytest.mark.slow
def test_edited_arguments_are_an_object_from_a_text_or_a_file(
    treadle: Run, waits: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approving, "CHECKED_WITHIN_S", 0.05)  # No worker looks at it here.
    told = waits(PAY)
    (tmp_path / "edit.json").write_text('{"to": "ann", "cents": 5}')
    treadle("approvals", "approve", "toolu_1", "--input", "[1]", code=exits.USAGE)
    stored = treadle("approvals", "approve", "toolu_1", "--input", "@edit.json")
    assert "no worker has taken it yet" in stored.err
    ((_, reply),) = told()
    assert reply["input"] == {"to": "ann", "cents": 5}
    other = treadle("approvals", "approve", "toolu_1", code=exits.CONFLICT)
    assert "approved with other arguments" in other.err


def test_one_id_in_two_runs_needs_the_run(treadle: Run, waits: Any) -> None:
    told = waits(PAY)
    waits(PAY, run="r2")
    both = treadle("approvals", "approve", "toolu_1", code=exits.USAGE)
    assert "r1 (step loop)" in both.err and "--run" in both.err
    treadle("approvals", "approve", "toolu_1", "--run", "r1")
    assert len(told()) == 1


def test_arguments_that_were_cut_are_shown_whole_from_the_journal(
    treadle: Run, waits: Any, settings: Settings
) -> None:
    whole = {"path": "a.py", "content": "line\n" * 2_000}
    cut = msgspec.structs.replace(PAY, input=raw('{"path": "a'), full_bytes=12_000)
    waits(cut)
    without = treadle("approvals", "show", "toolu_1").out
    assert "cut: they have 12000 bytes in all" in without

    async def write() -> None:
        async with open_stage(settings) as stage:
            call = {"id": "toolu_1", "name": "pay", "input": whole, "args_hash": PAY.args_hash}
            edited = {"kind": "replied", "args_hash": PAY.args_hash, "input": {"cents": 1}}
            entries = [{"kind": "judged", "calls": [call]}, edited]
            body = {"token": 1, "iteration": 0, "nonce": "n", "body": entries}
            subject = stage.subjects.record("r1", "loop", 0)
            await stage.js.store(subject, msgspec.json.encode(body))

    asyncio.run(write())
    shown = treadle("approvals", "show", "toolu_1", "--json").json["ask"]
    assert shown["input"] == whole and "full_bytes" not in shown


# ------------------------------------------------------------------ words


@pytest.mark.slow
def test_words_reach_the_only_loop_and_count_once(treadle: Run, waits: Any) -> None:
    told = waits()
    assert "treadle run steer r1 loop TEXT" in treadle("run", "show", "r1").out
    first = treadle("run", "steer", "r1", "Mind the gap.", "--id", "m1", "--json").json
    assert treadle("run", "steer", "r1", "Mind the gap.", "--id", "m1", "--json").json == first
    assert (first["step"], first["kind"]) == ("loop", "steer")
    said = treadle("run", "follow-up", "r1", "loop", "And then?").out
    assert "follow-up to step loop of r1 is stored" in said
    treadle("run", "send", "r1", "--payload", '{"n": 1}')
    treadle("run", "send", "r1", "loop", "--payload", "@-", code=exits.USAGE)
    treadle("run", "send", "r1", "loop", "--payload", "-", "--kind", "reply", stdin="[2]")
    assert told() == [
        ("steer", "Mind the gap."),
        ("follow_up", "And then?"),
        ("steer", {"n": 1}),
        ("reply", [2]),
    ]


@pytest.mark.slow
def test_words_that_cannot_be_placed_are_refused_with_what_to_do(
    treadle: Run, waits: Any, settings: Settings
) -> None:
    told = waits()
    assert "quotes" in treadle("run", "steer", "r1", "mind", "the", "gap", code=exits.USAGE).err
    assert "empty" in treadle("run", "steer", "r1", " ", code=exits.USAGE).err
    assert "no agent loop" in treadle("run", "steer", "r1", "x", "hm", code=exits.USAGE).err
    treadle("run", "send", "r1", "--payload", "1", "--kind", "shout", code=exits.USAGE)
    treadle("run", "steer", "none", "hm", code=exits.UNKNOWN)
    assert told() == []

    async def two_loops() -> None:
        workflow = Workflow("two")
        for name in ("a", "b"):
            workflow.agent_loop(name, "think", max_iterations=5)
        async with open_stage(settings) as stage:
            version = await stage.client.register(workflow)
            steps = {name: StepEntry("active", started_ms=int(time.time())) for name in ("a", "b")}
            await stage.document("r2", workflow="two", definition=version, steps=steps)

    asyncio.run(two_loops())
    assert "'a', 'b'" in treadle("run", "steer", "r2", "hm", code=exits.USAGE).err
    assert treadle("run", "steer", "r2", "b", "hm", "--json").json["step"] == "b"
