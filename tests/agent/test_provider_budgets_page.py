"""The page about provider budgets: its Python runs, and what it names is there.

Method: its blocks are one program, on a real server against the fake model.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.agent.test_docs import program

from treadle.sdk.settings import Settings
from treadle.worker.agent import ProviderBudget
from treadle.worker.agent.core.tokens import ANSWER_TOKENS
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.provider import CONTENDED_S, LIMITED_S, TRIES_MAX
from treadle.worker.agent.testing import FakeAnthropic, text, turn

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "provider-budgets.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FakeAnthropic([turn(text("Delivery."))]) as fake:
        for name, value in {**fake.env, "MODEL": "anthropic:claude-test"}.items():
            monkeypatch.setenv(name, value)
        asyncio.run(program("provider-budgets.md", settings))


def test_the_page_names_the_fields_and_numbers_that_there_are() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert rows == list(ProviderBudget.__struct_fields__)
    assert f"{ANSWER_TOKENS:,} for the answer" in PAGE
    assert f"up to {RetryPolicy().wait_s_max:.0f} s" in PAGE
    assert (TRIES_MAX, CONTENDED_S, LIMITED_S) == (50, 0.5, 1.0)
