"""A delivery that its sender has signed starts one run, and anything else is told why not.
Method: a real server, engine and gateway; deliveries over real connections, signed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.engine.stand import loop
from tests.gateway.stage import SECRET, Stage, gateway, open_stage, signed

from treadle.sdk import UserError, Workflow
from treadle.sdk.client import Webhook
from treadle.sdk.collecting import Batch
from treadle.sdk.settings import Settings

Play = Callable[[Callable[[Stage], Awaitable[None]]], None]
ENV = "env:TEST_HOOK_SECRET"


@pytest.fixture
def play(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a story on a stage whose gateway has the secret in its environment."""
    monkeypatch.setenv("TEST_HOOK_SECRET", SECRET)

    def play(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def on_stage() -> None:
            async with open_stage(settings) as stage:
                await story(stage)

        asyncio.run(on_stage())

    return play


async def create(stage: Stage, on: Webhook | None = None, **options: object) -> None:
    hook = on or Webhook(secret=ENV)
    workflow = options.pop("workflow", loop())
    await stage.client.triggers.create("push", workflow, hook, **options)  # type: ignore[arg-type]


def test_a_signed_delivery_starts_one_run_however_often_and_to_whichever_gateway(
    play: Play, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        await create(stage, metadata={"team": "x"})
        body = b'{"n":1}'
        headers = signed(body)
        told = await stage.post("/hooks/push", body, **headers)
        assert told.status_code == 202
        run = told.json()["run"]
        assert told.json() == {"run": run, "trigger": "push"}
        assert told.headers["treadle-run-id"] == run
        async with gateway(settings) as other:
            again = await asyncio.gather(
                stage.post("/hooks/push", body, **headers),
                stage.post(f"{other}/hooks/push", body, **signed(body, at_s=time.time() - 20)),
            )
        assert [each.json()["run"] for each in again] == [run, run]
        document = await stage.status(run, "running")
        assert document.metadata == {"team": "x", "trigger": "push"}
        assert len(await stage.client.list()) == 1
        assert b'"input":{"n":1}' in (await stage.events(run))[0].data
        other_run = (await stage.post("/hooks/push", body, **signed(body, "d-2"))).json()["run"]
        assert other_run != run

    play(story)


def test_a_delivery_of_a_workflow_that_collects_is_one_start_however_often_it_is_sent(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        workflow = Workflow("collecting", collect=Batch(2, 60))
        workflow.task("work")
        await create(stage, workflow=workflow)
        first = await stage.post("/hooks/push", b"1", **signed(b"1", "d-1"))
        assert first.status_code == 202 and "treadle-run-id" not in first.headers
        assert first.json() == {"collected": 1, "trigger": "push"}
        again = await stage.post("/hooks/push", b"1", **signed(b"1", "d-1"))
        assert again.json() == first.json()
        assert await stage.client.list() == ()
        await stage.post("/hooks/push", b"2", **signed(b"2", "d-2"))
        found = await stage.until("a run", stage.client.list, lambda runs: len(runs) == 1)
        request = (await stage.events(found[0].id))[0]
        assert b'"input":[1,2]' in request.data
        assert found[0].metadata["trigger"] == "push"

    play(story)


def test_what_is_not_signed_starts_nothing_and_says_what_is_wrong(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await create(stage)
        body = b"1"
        good = signed(body)
        cases = [
            ({**good, "webhook_signature": "v1,bm8="}, body, "is not that of this body"),
            (good, b"2", "is not that of this body"),
            (signed(body, secret="another"), body, "is not that of this body"),
            ({**good, "webhook_id": "d-other"}, body, "is not that of this body"),
            ({k: v for k, v in good.items() if k != "webhook_id"}, body, "webhook-id is missing"),
            ({}, body, "is missing"),
            (signed(body, at_s=time.time() - 301), body, "away from this clock"),
            (signed(body, at_s=time.time() + 310), body, "away from this clock"),
            ({**good, "webhook_timestamp": "soon"}, body, "no number of seconds"),
        ]
        for headers, sent, told in cases:
            answer = await stage.post("/hooks/push", sent, **headers)
            assert answer.status_code == 401
            assert told in answer.json()["error"]["message"]
        assert await stage.client.list() == ()

    play(story)


def test_a_body_that_cannot_be_an_input_is_refused_and_starts_nothing(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        workflow = Workflow("numbers", input=dict[str, int])
        workflow.task("count")
        await create(stage, Webhook(secret=ENV, body_bytes_max=100), workflow=workflow)
        for body, status, type_ in [
            (b"no json", 400, "InvalidPayload"),
            (b'"text"', 422, "InvalidPayload"),
            (b'"%b"' % (b"x" * 100), 413, "TooLarge"),
        ]:
            answer = await stage.post("/hooks/push", body, **signed(body))
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, type_)
            assert "`" not in answer.text, "a command is for the operator"
        good = b'{"n": 1}'
        await stage.post("/hooks/push", good, **signed(good))
        conflict = b'{"n": 2}'
        answer = await stage.post("/hooks/push", conflict, **signed(conflict))
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "RunConflict")
        assert "under another id" in answer.text and "`" not in answer.text
        assert "treadle run show" in caplog.text and "treadle workflow show" in caplog.text
        assert len(await stage.client.list()) <= 1

    play(story)


def test_a_trigger_that_is_not_there_or_takes_nothing_is_told(play: Play) -> None:
    async def story(stage: Stage) -> None:
        body = b"1"
        assert (await stage.post("/hooks/push", body, **signed(body))).status_code == 404
        assert (await stage.post("/hooks/a.b", body, **signed(body))).status_code == 404
        await create(stage)
        assert (await stage.get("/hooks/push")).status_code == 405
        await stage.client.triggers.pause("push")
        paused = await stage.post("/hooks/push", body, **signed(body))
        assert (paused.status_code, paused.headers["retry-after"]) == (503, "30")
        unsigned = await stage.post("/hooks/push", body)
        assert unsigned.status_code == 401
        await stage.client.triggers.resume("push")
        assert (await stage.post("/hooks/push", body, **signed(body))).status_code == 202
        await stage.client.triggers.delete("push")
        assert (await stage.post("/hooks/push", body, **signed(body))).status_code == 404

    play(story)


def test_a_secret_is_never_stored_and_a_file_with_two_of_them_takes_both(
    play: Play, tmp_path: Path
) -> None:
    async def story(stage: Stage) -> None:
        file = tmp_path / "secret"
        await create(stage, Webhook(secret=f"file:{file}"))
        body = b"1"
        missing = await stage.post("/hooks/push", body, **signed(body, secret="old"))
        assert (missing.status_code, missing.json()["error"]["type"]) == (503, "SecretMissing")
        assert str(file) not in missing.text
        file.write_text("old new\n")
        for secret in ("old", "new"):
            answer = await stage.post("/hooks/push", body, **signed(body, secret, secret=secret))
            assert answer.status_code == 202
        file.write_text("new\n")
        answer = await stage.post("/hooks/push", body, **signed(body, "d", secret="old"))
        assert answer.status_code == 401
        with pytest.raises(UserError, match="does not say where") as refused:
            await create(stage, Webhook(secret="hunter2"), replace=True)
        assert "hunter2" not in str(refused.value)

    play(story)


def test_deliveries_of_github_and_stripe_and_with_headers_of_ones_own_are_checked(
    play: Play,
) -> None:
    """Each is signed here as its sender's documentation says; the id is the sender's."""

    def made(signed: bytes) -> str:
        return hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()

    async def story(stage: Stage) -> None:
        at = str(int(time.time()))
        body = b'{"id":"evt_1","n":1}'
        github = {
            "x_github_delivery": "72d3162e",
            "x_hub_signature_256": f"sha256={made(body)}",
            "x_github_event": "push",
        }
        stripe = {"stripe_signature": f"t={at},v1=00,v1={made(f'{at}.'.encode() + body)}"}
        own = {"x_time": at, "x_mac": made(f"{at}.".encode() + body), "x_key": "k-1"}
        named = {"signature_header": "x-mac", "timestamp_header": "x-time", "id_header": "x-key"}
        for on, headers in [
            (Webhook(secret=ENV, scheme="github", headers=("x-github-event",)), github),
            (Webhook(secret=ENV, scheme="stripe"), stripe),
            (Webhook(secret=ENV, scheme="hmac", **named), own),  # type: ignore[arg-type]
        ]:
            await create(stage, on, replace=True)
            answer = await stage.post("/hooks/push", body, **headers)
            assert answer.status_code == 202, answer.text
            run = answer.json()["run"]
            again = await stage.post("/hooks/push", body, **headers)
            assert again.json()["run"] == run
            forged = await stage.post("/hooks/push", body + b" ", **headers)
            assert forged.status_code == 401
            request = (await stage.events(run))[0].data
            if on.headers:
                kept = b'"input":{"headers":{"x-github-event":"push"},"body":{"id":"evt_1","n":1}}'
                assert kept in request
        late = str(int(at) - 1000)
        old = {"stripe_signature": f"t={late},v1={made(f'{late}.'.encode() + body)}"}
        await create(stage, Webhook(secret=ENV, scheme="stripe"), replace=True)
        assert (await stage.post("/hooks/push", body, **old)).status_code == 401

    play(story)


def test_what_cannot_be_a_webhook_is_refused(play: Play) -> None:
    async def story(stage: Stage) -> None:
        for on, told in [
            (Webhook(secret="env:A B"), "does not say where"),
            (Webhook(secret=ENV, scheme="strip"), "Did you mean 'stripe'"),  # type: ignore[arg-type]
            (Webhook(secret=ENV, id_header="x-id"), "has headers of its own"),
            (Webhook(secret=ENV, scheme="hmac", id_header="X y"), "cannot be the name"),
            (Webhook(secret=ENV, tolerance_s=0), "tolerance_s is 0"),
            (Webhook(secret=ENV, body_bytes_max=0), "body_bytes_max is 0"),
        ]:
            with pytest.raises(UserError, match=told):
                await create(stage, on)
        assert await stage.client.triggers.list() == ()

    play(story)
