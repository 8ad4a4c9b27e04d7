"""A gateway in the test's own loop, on a real server; requests come over a real connection."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from tests.engine.stand import Stand, open_stand

from treadle.engine.gateway import Gateway
from treadle.sdk.settings import Settings
from treadle.worker import Worker

SECRET = "a-secret-of-the-test"


class Stage(Stand):
    """A stand with gateways."""

    client_of: httpx2.AsyncClient

    async def post(self, path: str, body: Any = b"", **headers: str) -> httpx2.Response:
        """Post JSON, or bytes as they are, to the first gateway."""
        content = body if isinstance(body, bytes) else _json(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client_of.post(path, content=content, headers=named)

    async def get(self, path: str) -> httpx2.Response:
        return await self.client_of.get(path)


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def signed(
    body: bytes, delivery: str = "d-1", at_s: float | None = None, secret: str = SECRET
) -> dict[str, str]:
    """Return the headers of a delivery of the standard scheme."""
    at = str(int(time.time() if at_s is None else at_s))
    made = hmac.new(secret.encode(), f"{delivery}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook_id": delivery,
        "webhook_timestamp": at,
        "webhook_signature": f"v1,{base64.b64encode(made).decode()}",
    }


@asynccontextmanager
async def open_stage(settings: Settings, *workers: Worker) -> AsyncGenerator[Stage]:
    """Give a stage with one gateway, an engine and workers."""
    async with open_stand(settings) as stand:
        stage = Stage(stand.js, stand.subjects, stand.client, settings)
        try:
            await stage.engine()
            for worker in workers:
                stage.worker(worker)
            async with gateway(settings) as url, httpx2.AsyncClient(base_url=url) as client:
                stage.client_of = client
                yield stage
        finally:
            await stage.close()


@asynccontextmanager
async def gateway(settings: Settings) -> AsyncGenerator[str]:
    """Run a gateway and give its address."""
    serving = Gateway(settings)
    task = asyncio.create_task(serving.run())
    ready = asyncio.create_task(serving.ready.wait())
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    ready.cancel()
    try:
        yield f"http://{serving.host}:{serving.port}"
    finally:
        serving.stop()
        await task
