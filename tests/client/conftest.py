"""What all tests of the client share."""

from __future__ import annotations

import pytest

from treadle.sdk.client import requests


@pytest.fixture(autouse=True)
def few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One server has no deposed leader: a run that is not there at the second look is unknown."""
    monkeypatch.setattr(requests, "UNKNOWN_LOOKS_S", (0.001,))
