"""Conversations for the properties: whole ones as the runtime makes them, and broken ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from treadle.worker.agent.core.conversation import Block, Message, ModelRequest

NAMES = ("search", "read", "write")
_words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip)


def text(words: str) -> Block:
    return {"type": "text", "text": words}


def user(*blocks: Block | str) -> Message:
    return _message("user", blocks)


def assistant(*blocks: Block | str) -> Message:
    return _message("assistant", blocks)


def _message(role: str, blocks: tuple[Block | str, ...]) -> Message:
    return {"role": role, "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def use(id: str, name: str = "search", **arguments: Any) -> Block:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(id: str, content: str | list[Block] = "found", *, error: bool = False) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": id, "content": content}
    return {**block, "is_error": True} if error else block


def thinking(words: str = "hm", signature: str = "sig") -> Block:
    return {"type": "thinking", "thinking": words, "signature": signature}


def request(messages: list[Message], **fields: Any) -> ModelRequest:
    return ModelRequest(model="m", max_tokens=100, messages=messages, **fields)


@st.composite
def whole(draw: st.DrawFn, max_turns: int = 8, max_chars: int = 200) -> list[Message]:
    """A conversation the API takes; the last message is the user's."""
    said = st.integers(1, max_chars).map(lambda n: "word " * (n // 5 + 1))
    messages: list[Message] = [user(draw(said))]
    number = 0
    for _ in range(draw(st.integers(0, max_turns))):
        answer: list[Block | str] = []
        if draw(st.booleans()):
            answer.append(thinking(draw(_words)))
        calls = draw(st.lists(st.sampled_from(NAMES), max_size=3))
        if not calls or draw(st.booleans()):
            answer.append(draw(said))
        reply: list[Block | str] = []
        for name in calls:
            number += 1
            answer.append(use(f"c{number}", name, q=draw(st.integers(0, 3))))
            reply.append(result(f"c{number}", draw(said), error=draw(st.booleans())))
        if not calls or draw(st.integers(0, 3)) == 0:
            reply.append(draw(said))
        messages += [assistant(*answer), user(*reply)]
    return messages


_ids = st.sampled_from(["a", "b", "a_2", "bad id", ""])
_texts = st.sampled_from(["", " ", "hello", "half \ud83d", "joined \ud83d\ude00"])
_blocks: st.SearchStrategy[Block] = st.one_of(
    _texts.map(text),
    st.builds(use, _ids, st.sampled_from(["search", "no.name"]), q=_texts),
    st.builds(
        result, _ids, _texts | st.just("word " * 9_000) | st.lists(_texts.map(text), max_size=2)
    ),
    st.builds(thinking, st.sampled_from(["", "hm", "half \ude00"])),
)
broken: st.SearchStrategy[list[Message]] = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant"]),
        st.lists(_blocks, max_size=5) | _texts,
    ),
    max_size=8,
)
"""Anything a crash, another program or a hook may leave."""
