"""The test of ``charge_once.py``: `pytest examples/charge_once_test.py`."""

from __future__ import annotations

import asyncio

from charge_once import Order, PaperBank, worker_of, workflow

from treadle.sdk.testing import crash_everywhere, happened


class WatchedBank(PaperBank):
    """Tells the test of each charge."""

    async def charge(self, reference: str, cents: int) -> str:
        happened(f"charge {reference}")
        return await super().charge(reference, cents)


def test_a_card_is_charged_once_whatever_dies() -> None:
    bank = WatchedBank()
    report = asyncio.run(
        crash_everywhere(
            workflow,
            Order("O-104", 4900),
            lambda: worker_of(bank),
            before=bank.receipts.clear,
        )
    )
    assert report.outcome == "paid, receipt O-104/4900"
