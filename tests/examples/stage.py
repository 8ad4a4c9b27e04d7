"""An example with agents as a user runs it: its worker as a process, a fake model, a client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.nursery import agents

from treadle.sdk.client import Client
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TIMEOUT_S = 50


def play(
    settings: Settings,
    example: str,
    workflow: str,
    given: Any,
    turns: Sequence[Turn] | Callable[[RecordedRequest], Turn],
    log: Path,
    **variables: str,
) -> tuple[Any, FakeAnthropic]:
    """Run the example's workflow once; return its result, and the fake that was its model."""

    async def story(fake: FakeAnthropic) -> Any:
        env = {
            **os.environ,
            **fake.env,
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
            "NO_PROXY": "127.0.0.1",
            **variables,
        }
        async with local(url=settings.url, namespace=settings.namespace) as client:
            process = agents().start(
                "treadle.cli", "worker", str(EXAMPLES / example), env=env, log=log, is_alone=True
            )
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await _registered(client, workflow)
                    return await (await client.start(workflow, given, id="run-1")).result()
            finally:
                process.kill()
                process.wait()
                print(log.read_text())

    with FakeAnthropic(turns) as fake:
        result = asyncio.run(story(fake))
    assert [request.error for request in fake.requests if request.status != 200] == []
    return result, fake


async def _registered(client: Client, workflow: str) -> None:
    while workflow not in await client.workflows():
        await asyncio.sleep(0.02)
