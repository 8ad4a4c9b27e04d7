"""The bus on a nats-server in a container, where a Docker engine answers; skipped elsewhere.

Every other test runs on the binary, which it can kill and restart by its process id.
"""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from treadle.engine.topology import ensure_topology
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings

IMAGE = "nats:2.15.1-alpine"


def _docker_answers() -> bool:
    host = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if not host.startswith("unix://"):
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(host.removeprefix("unix://")) == 0


def test_a_namespace_is_set_up_on_a_server_in_a_container() -> None:
    if not _docker_answers():
        pytest.skip("no Docker engine answers on this machine")
    from testcontainers.nats import NatsContainer

    async def story(url: str) -> None:
        settings = Settings(url=url)
        connection = await Connection.open(settings, name="container-test")
        try:
            subjects = await ensure_topology(JetStream(connection), settings)
            sequence = await JetStream(connection).store(subjects.worker("w"), b"{}")
            assert sequence > 0
        finally:
            await connection.close()

    with NatsContainer(IMAGE, jetstream=True) as container:
        asyncio.run(story(container.nats_uri()))
