"""What can be wrong with the metadata of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from treadle.sdk.limits import STEP_METADATA_CHARS_MAX, STEP_METADATA_MAX

Change = Callable[[dict[str, Any]], str | None]


def _metadata(value: object, place: str = "") -> Change:
    """Change that of the first task."""

    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] == "task":
                step["metadata"] = value
                return f"steps[{i}].metadata{place}"
        return None

    return change


FAULTS: dict[str, tuple[Change, bool]] = {
    "metadata is a list": (_metadata(["a"]), True),
    "metadata is a number": (_metadata({"a": 1}, ".a"), True),
    "metadata without a name": (_metadata({"": "x"}), False),
    "much metadata": (_metadata({f"k{n}": "" for n in range(STEP_METADATA_MAX + 1)}), True),
    "long metadata": (_metadata({"k": "x" * STEP_METADATA_CHARS_MAX}), False),
}
