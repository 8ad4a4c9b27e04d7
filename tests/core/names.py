"""Names and values of which tests of the core make steps and events: few, so that they meet."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

STEP_IDS = ("a", "b", "c", "d", "e", "f")
SIGNALS = ("go", "stop")
EVENTS = ("order.paid", "order.late")
ERRORS = ("ValueError", "timeout", "Fatal")

raws = st.integers(0, 9).map(lambda n: msgspec.Raw(b"%d" % n))
