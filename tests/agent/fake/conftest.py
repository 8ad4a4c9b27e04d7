"""Fixtures: the real SDK, pointed at a fake of the test's own.

The SDK retries nothing here, so that the fake's records say exactly what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message

from treadle.worker.agent.testing import FakeAnthropic

Sdk = Callable[[FakeAnthropic], anthropic.Anthropic]
Send = Callable[..., Message]


@pytest.fixture(scope="session")
def _one_client() -> Iterator[anthropic.Anthropic]:
    # To make a client costs more than a whole test here.
    with anthropic.Anthropic(api_key="test", base_url="http://127.0.0.1:1", max_retries=0) as one:
        yield one


@pytest.fixture
def sdk(_one_client: anthropic.Anthropic) -> Sdk:
    """A client of a fake."""
    return lambda fake: _one_client.with_options(base_url=fake.base_url)


@pytest.fixture
def send(sdk: Sdk) -> Send:
    """Send a body as it is, valid or not, to a fake."""

    def _send(fake: FakeAnthropic, body: dict[str, Any]) -> Message:
        return sdk(fake).post("/v1/messages", cast_to=Message, body=body)

    return _send


@pytest.fixture
def ask() -> dict[str, Any]:
    """The smallest request that is valid."""
    return {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "hi"}]}
