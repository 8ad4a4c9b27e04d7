"""What steps without a worker wait for: answers of people, and published events that fit."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from tests.core.names import STEP_IDS, raws

from treadle.sdk.asks import Reply
from treadle.sdk.messages import EventMatched, Failure, MessageSent

answers = st.builds(
    lambda step, verdict, by: MessageSent(
        step=step,
        kind="reply",
        id=f"{step}-{verdict}",
        payload=msgspec.Raw(msgspec.json.encode(Reply(call_id=step, verdict=verdict, by=by))),
    ),
    st.sampled_from((*STEP_IDS, "unknown")),
    st.sampled_from(("approve", "reject", "answer")),
    st.sampled_from(("", "ada")),
)
matches = st.builds(
    EventMatched,
    step=st.sampled_from((*STEP_IDS, "unknown")),
    request=st.sampled_from((1, 1, 1, 9)),
    published=st.integers(1, 3),
    payload=raws,
    failure=st.sampled_from((None, None, None, Failure("condition", retryable=False))),
)
