"""What a run says that waits for somebody else: until when, and what happens then.

Pure: documents written by hand, an explanation out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.client.stage import done
from tests.client.test_explain import ACTIVE, ENGINE, LIVE, NOW, SINCE, WORKER, taken, told

from treadle.sdk import Workflow
from treadle.sdk.client.explain.facts import Facts
from treadle.sdk.client.explain.reasons import explanation_of
from treadle.sdk.client.view import of_document
from treadle.sdk.run import Pause, StepEntry
from treadle.sdk.times import date, since


@pytest.mark.parametrize("on_timeout", ["fail", "complete"])
@pytest.mark.parametrize("kind", ["signal_wait", "event_wait"])
def test_a_wait_that_its_timeout_ends_needs_nobody_and_says_what_happens_then(
    kind: str, on_timeout: Any
) -> None:
    flow = Workflow("flow")
    if kind == "signal_wait":
        flow.wait_for_signal("go", timeout=90, on_timeout=on_timeout)
    else:
        flow.wait_for_event("go", "go", timeout=90, on_timeout=on_timeout)
    document = msgspec.structs.replace(ACTIVE, steps={"go": StepEntry("active", 0, SINCE)})
    view = of_document(document, flow.build(), {}, [ENGINE])
    explanation = explanation_of(Facts(view=view, now_ms=NOW, presence=(ENGINE,)))
    due_ms = SINCE + 90_000
    then = "fails with reason timeout" if on_timeout == "fail" else "completes with null"
    assert (explanation.state, explanation.main.kind) == ("healthy", kind)
    assert (explanation.main.level, explanation.main.until_ms) == ("pause", due_ms)
    assert explanation.main.text == (
        f"step 'go' waits for the {kind.removesuffix('_wait')} 'go' (until {date(due_ms)}; it "
        f"{then} then) ({since(SINCE, NOW)}; 30.0s left)"
    )
    late = explanation_of(Facts(view=view, now_ms=due_ms + 6_000, presence=(ENGINE,)))
    assert (late.state, late.main.kind) == ("stuck", "overdue")


def test_a_run_that_is_paused_while_it_undoes_waits_for_the_resume() -> None:
    undoing = msgspec.structs.replace(
        ACTIVE, status="running", undoing="cancelled", steps={"first": done()}
    )
    explanation, reason = told(None, document=undoing)
    assert (explanation.state, reason.kind) == ("healthy", "undoing")
    pause = Pause(event="e9", reason="look first", since_ms=SINCE)
    paused = msgspec.structs.replace(undoing, status="paused", pause=pause)
    explanation, reason = told(None, document=paused)
    assert (explanation.state, reason.kind) == ("stuck", "paused")
    assert reason.command == "treadle run resume r1"
    assert [each.level for each in explanation.reasons] == ["waits", "note"]
    under_way = {"first": done(), "loop": StepEntry("active", 0, SINCE)}
    paused = msgspec.structs.replace(paused, steps=under_way)
    explanation, reason = told(LIVE, WORKER, found=taken(4_000), document=paused)
    assert (explanation.state, reason.kind) == ("healthy", "executing"), "it may finish"
