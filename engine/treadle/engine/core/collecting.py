"""What the record of a key says before and after the run of a window is requested. Pure.

Which starts are a window is said in ``treadle.sdk.windows``.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.sdk.collected import WindowRecord
from treadle.sdk.windows import Window


def decided(record: WindowRecord, window: Window, run: str) -> WindowRecord:
    """Return the record with this window as the one that is requested next."""
    assert not record.run and window.first > record.closed
    return replace(
        record,
        run=run,
        version=window.version,
        first=window.first,
        last=window.last,
        count=window.count,
    )


def requested(record: WindowRecord) -> WindowRecord:
    """Return the record after the run of its window was requested."""
    assert record.run
    return WindowRecord(closed=record.last)
