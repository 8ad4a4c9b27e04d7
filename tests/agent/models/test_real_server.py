"""Both adapters speak with a real model on a real server; what it says does not matter.

Method: run where ``TREADLE_TEST_LLAMA_URL`` names a running llama-server, which has both APIs.
"""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.agent.models.wire import Deltas, ask, fault, said

from treadle.worker.agent.core.conversation import ModelResponse
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.openai import OpenAICompatibleModel
from treadle.worker.agent.models.port import Model, TextDelta

URL = os.environ.get("TREADLE_TEST_LLAMA_URL", "")
pytestmark = pytest.mark.skipif(not URL, reason="TREADLE_TEST_LLAMA_URL names no llama-server")


def model_of(provider: str) -> Model:
    """Return the model behind one of the server's two APIs."""
    if provider == "anthropic":
        return AnthropicModel("local", base_url=URL, api_key="none")
    return OpenAICompatibleModel("local", f"{URL}/v1")


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_real_model_answers_whole_and_streamed(provider: str) -> None:
    async def story() -> tuple[ModelResponse, ModelResponse, Deltas]:
        model, deltas = model_of(provider), Deltas()
        tools = [{"name": "clock", "description": "The time.", "input_schema": {"type": "object"}}]
        request = ask(
            max_tokens=12,
            temperature=0.0,
            tools=tools,
            system=[{"type": "text", "text": "Answer in one short sentence."}],
            messages=[said("user", "What is the capital of France?")],
        )
        whole = await model.respond(request)
        streamed = await model.respond(request, on_delta=deltas)
        await model.close()
        return whole, streamed, deltas

    whole, streamed, deltas = asyncio.run(story())
    for answer in (whole, streamed):
        assert answer.stop_reason in ("end_turn", "max_tokens")
        assert 0 < answer.usage.output_tokens <= 12
        assert answer.usage.context_tokens > 12
        assert not answer.usage.is_estimated
    said_aloud = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    assert said_aloud == "".join(block["text"] for block in streamed.content)


@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_a_real_server_says_that_a_prompt_is_too_long(provider: str) -> None:
    async def story() -> str:
        model = model_of(provider)
        what = await fault(model, ask(max_tokens=5, messages=[said("user", "word " * 9000)]))
        await model.close()
        return what.kind

    assert asyncio.run(story()) == "context_exceeded"


def test_a_real_server_counts_tokens() -> None:
    async def story() -> int | None:
        model = model_of("anthropic")
        counted = await model.count_tokens(ask())
        await model.close()
        return counted

    counted = asyncio.run(story())
    assert counted is not None
    assert counted > 0
