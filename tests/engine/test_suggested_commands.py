"""What `explain` suggests works as it is printed: nobody has to know more to answer a wait.
Method: runs that wait for each kind of answer; the printed command is run, and its run goes on."""

from __future__ import annotations

import asyncio
import shlex
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.cli.main import main
from treadle.sdk import Workflow, WorkflowDefinition
from treadle.sdk.settings import Settings
from treadle.worker import Ask, LoopContext, Worker


def asking() -> Worker:
    """Return a worker whose loops wait for what their input says, and complete when it is there."""
    worker = Worker()

    @worker.handler("link")
    async def link(ctx: LoopContext[Any]) -> Any:
        if ctx.iteration:
            return ctx.complete("answered")
        match ctx.input:
            case "question":
                return ctx.wait("people", asks=[Ask(id="which", kind="question", text="Which?")])
            case "approval":
                return ctx.wait("people", asks=[Ask(id="pay/1", kind="approval", tool="pay")])
            case "message":
                return ctx.wait("an idea")
            case _:
                return ctx.continue_(None)

    return worker


def waits(name: str) -> WorkflowDefinition:
    """Return a workflow that waits for what its name says."""
    flow = Workflow(name)
    match name:
        case "signal":
            flow.wait_for_signal("go")
        case "event":
            flow.wait_for_event("paid", "order.paid")
        case _:
            flow.approval("gate", prompt="Ship it?", approvers=["ada l.", "bob"])
    return flow.build()


KINDS = {
    "signal": "signal_wait",
    "event": "event_wait",
    "gate": "ask",
    "question": "ask",
    "approval": "ask",
    "message": "message_wait",
    "bound": "parked",
}


@pytest.mark.slow
def test_every_command_that_explain_suggests_to_go_on_works_as_printed(
    play: Play, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    def typed(command: str) -> int:
        program, *arguments = shlex.split(command)
        assert program == "treadle"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        return int(ended.value.code or 0)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(asking())
        for name in KINDS:
            is_loop = name in ("question", "approval", "message", "bound")
            flow = loop(max_iterations=1, on_limit="park") if name == "bound" else loop()
            await stand.client.start(flow if is_loop else waits(name), name, id=name)

        async def told(name: str) -> str:
            found = await stand.until(
                f"{name} waits",
                lambda: stand.client.explain(name),
                lambda it: it.main.kind == KINDS[name],
            )
            assert found.is_stuck
            return found.main.command

        commands = await asyncio.gather(*map(told, KINDS))
        for command in commands:
            assert await asyncio.to_thread(typed, command) == 0, command
        for name in KINDS:
            assert (await stand.ended(name)).status == "completed", name

    play(story)
