"""How the starts of sound definitions are collected, for hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from treadle.sdk.collecting import Batch, Debounce

_keys = st.sampled_from(("", 'input["customer"]', "len(input)"))
_waits_s = st.floats(2, 7 * 24 * 3600)
collects = st.one_of(
    st.none(),
    st.builds(Debounce, period_s=st.floats(0.001, 2), max_wait_s=_waits_s, key=_keys),
    st.builds(Batch, max_size=st.integers(1, 1_000), max_wait_s=_waits_s, key=_keys),
)
