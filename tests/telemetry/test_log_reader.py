"""Where a reader of the log begins: nothing that is stored meanwhile is passed over.
Method: a stream on a real server, and a message that is stored in the middle of the first look."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from treadle.engine.telemetry.log_reader import LogReader
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects


def test_what_is_stored_during_the_first_look_comes_after_the_position(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        connection = await Connection.open(settings, name="test")
        js, s = JetStream(connection), Subjects(settings.namespace)
        stream: dict[str, Any] = {"name": s.events_stream, "subjects": [s.all_events]}
        await js.ensure_stream({**stream, "storage": "file", "allow_direct": True})
        look = JetStream.first_since

        async def slow(self: JetStream, *arguments: Any) -> int | None:
            found = await look(self, *arguments)
            await self.store(s.event("r1"), b"{}")
            return found

        monkeypatch.setattr(JetStream, "first_since", slow)
        reader = LogReader(js, s)
        position = await reader.before(s.events_stream, s.all_events, datetime.now(UTC))
        assert position == 0
        (stored,) = await reader.after(s.events_stream, s.all_events, position)
        assert stored.subject == s.event("r1")
        await connection.close()

    asyncio.run(story())
