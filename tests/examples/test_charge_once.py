"""The example that charges a card once: its own test runs, and fails if the example errs.
Method: the example's test is called as pytest would; then with a bank that forgets."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from treadle.sdk.testing import CrashesShow, crash_everywhere

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import charge_once_test

    yield charge_once_test
    for name in ("charge_once", "charge_once_test"):
        sys.modules.pop(name)


def test_the_example_survives_and_a_bank_that_cannot_be_asked_does_not(example: Any) -> None:
    example.test_a_card_is_charged_once_whatever_dies()

    class Forgetful(example.WatchedBank):
        async def find(self, reference: str) -> str | None:
            return None

    work = crash_everywhere(
        example.workflow,
        example.Order("O-104", 4900),
        lambda: example.worker_of(Forgetful()),
    )
    with pytest.raises(CrashesShow, match=r"effect 'charge O-104' happens 2 times"):
        asyncio.run(work)
