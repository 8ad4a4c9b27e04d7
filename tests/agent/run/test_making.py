"""What no agent can be made of is refused where the agent is made, with what to write instead.
Method: the constructor alone; nothing is asked and nothing runs."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.sdk.errors import UserError
from treadle.worker.agent import Agent


async def read_order(order_id: str) -> str:
    """Read one order."""
    return order_id


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tools": [read_order]}, r"read_order is a plain function: .* Write @tool above it"),
        ({"tools": ["read_order"]}, r"'read_order' is no tool, .* with @tool"),
        ({"model": None}, r"model: None is no model, .* Write 'anthropic:NAME'"),
        ({"model": "gpt-4"}, r"  model 'gpt-4' names no provider: .* Write 'anthropic:NAME'"),
        ({"model": "acme:m"}, r"provider 'acme', which is not known .* Write 'anthropic:NAME'"),
        ({"models": {"strong": "gpt-5"}}, r"models\['strong'\]: model 'gpt-5' names no provider"),
        ({"summary_model": 7}, r"summary_model: 7 is no model"),
    ],
)
def test_what_no_agent_can_be_made_of_is_refused_when_it_is_made(
    given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words) as refused:
        Agent("reader", **{"model": "anthropic:m", **given})
    assert str(refused.value).startswith("agent 'reader' cannot be made:\n")


def test_several_faults_are_told_at_once() -> None:
    with pytest.raises(UserError, match=r"(?s)names no provider.*is a plain function"):
        Agent("reader", model="gpt-4", tools=[read_order])  # type: ignore[list-item]
