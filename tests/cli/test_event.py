"""``treadle event``: what it stores, prints and refuses.

The entry point on a real server; no engine runs, what is published is read from its stream.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Run
from tests.client.stage import open_stage

from treadle.cli import exits
from treadle.sdk.settings import Settings


@pytest.fixture
def namespace_made(settings: Settings) -> Settings:
    """A namespace that is set up."""

    async def set_up() -> None:
        async with open_stage(settings):
            pass

    asyncio.run(set_up())
    return settings


@pytest.mark.slow
def test_an_event_is_published_once_for_its_id(treadle: Run, namespace_made: Settings) -> None:
    publish = ("event", "publish", "order.paid", "--payload", '{"n": 1}', "--id", "e1")
    assert treadle(*publish).out == "published order.paid: event 1\n"
    assert treadle(*publish).out == "order.paid with id e1 was published before: event 1\n"
    told = {"event": "order.paid", "id": "e1", "sequence": 1, "repeated": True}
    assert treadle(*publish, "--json").json == told
    assert treadle("event", "publish", "order.paid").out == "published order.paid: event 2\n"
    fresh = treadle("event", "publish", "order.paid", "--id", "e3", "--json").json
    assert (fresh["sequence"], fresh["repeated"]) == (3, False)
    other = treadle("event", "publish", "order.paid", "--id", "e1", code=exits.USAGE)
    assert "was published with another payload" in other.err

    async def read() -> list[tuple[str, bytes]]:
        async with open_stage(namespace_made) as stage:
            s = stage.subjects
            found = stage.js.read(s.external_stream, s.all_external)
            return [(each.subject, each.data) async for each in found]

    (first, data), (second, nothing), _ = asyncio.run(read())
    assert (first.split(".", 1)[1], data) == ("ext.order.paid.e1", b'{"n":1}')
    assert second.startswith(first.rpartition(".")[0]) and nothing == b"null"


@pytest.mark.parametrize("name", ["order.*", "order paid", "", "a..b"])
def test_a_name_that_is_none_is_refused(treadle: Run, namespace_made: Settings, name: str) -> None:
    refused = treadle("event", "publish", name, code=exits.USAGE)
    assert "Choose a name such as 'order.paid'" in refused.err
