"""The rules of the Messages API, each a function that raises ``Refused``.

Where the wording of the real API is known from what its users have published, it is used here,
so that code which reads it (as for a prompt that is too long) can be tested. The rules are run in
the API's order: the shape of the fields, then what they mean together.
"""

from treadle.worker.agent.testing.rules.caching import check_cache_markers
from treadle.worker.agent.testing.rules.content import check_content, check_messages
from treadle.worker.agent.testing.rules.draft import Draft, Limits
from treadle.worker.agent.testing.rules.fields import check_fields
from treadle.worker.agent.testing.rules.pairing import check_pairing
from treadle.worker.agent.testing.rules.reasoning import check_reasoning, check_thinking
from treadle.worker.agent.testing.rules.tools import check_tool_choice, check_tools

__all__ = ["Draft", "Limits", "check"]

RULES = (
    check_fields,
    check_tools,
    check_tool_choice,
    check_thinking,
    check_messages,
    check_content,
    check_cache_markers,
    check_pairing,
    check_reasoning,
)


def check(draft: Draft) -> None:
    """Raise ``Refused`` for the first rule that the request breaks."""
    for rule in RULES:
        rule(draft)
