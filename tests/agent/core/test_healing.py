"""Whatever a history went through, the next request can be built from it.
Method: properties over arbitrarily broken histories, then an example per repair."""

from __future__ import annotations

import copy

from hypothesis import given
from tests.agent.core.histories import (
    assistant,
    broken,
    request,
    result,
    text,
    thinking,
    use,
    user,
    whole,
)

from treadle.worker.agent.core.conversation import Block, Message
from treadle.worker.agent.core.healing import (
    INTERRUPTED,
    NO_OUTPUT,
    OPENING,
    RESULT_CHARS_MAX,
    heal,
)
from treadle.worker.agent.core.rules import problems

CUT_OFF = result("a", INTERRUPTED, error=True)


@given(broken)
def test_a_healed_history_is_one_the_api_takes(messages: list[Message]) -> None:
    healed = heal(messages).messages
    assert problems(request([*healed, user("and now?")])) in (
        [],
        [f"messages[{len(healed)}]: two messages of the user in a row; they have to be one"],
    )


@given(broken)
def test_healing_twice_is_healing_once(messages: list[Message]) -> None:
    before = copy.deepcopy(messages)
    once = heal(messages)
    assert heal(messages) == once
    assert heal(once.messages).messages == once.messages
    assert heal(once.messages).repairs == ()
    assert messages == before, "healing leaves what it was given alone"


@given(whole())
def test_a_sound_history_is_left_alone(messages: list[Message]) -> None:
    healed = heal(messages)
    assert healed.messages == messages
    assert healed.repairs == ()


@given(broken, broken)
def test_what_comes_later_never_changes_how_earlier_messages_were_healed(
    earlier: list[Message], later: list[Message]
) -> None:
    # An answer without open calls closes what is before it.
    closed = [*earlier, user("x"), assistant("y")]
    first = heal(closed).messages
    assert heal([*closed, *later]).messages[: len(first)] == first


@given(broken)
def test_signed_thinking_is_kept_as_it_is_or_left_out(messages: list[Message]) -> None:
    def signed(said: list[Message]) -> list[Block]:
        return [
            block
            for message in said
            if message["role"] == "assistant" and isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "thinking"
        ]

    readable = [block for block in signed(messages) if "\ude00" not in block["thinking"]]
    assert signed(heal(messages).messages) == readable


def test_an_interrupted_call_gets_a_result_that_says_so() -> None:
    healed = heal([user("x"), assistant(use("a"))])
    assert healed.messages == [user("x"), assistant(use("a")), user(CUT_OFF)]
    assert "the call 'a' had no result" in healed.repairs[0]


def test_the_next_prompt_after_an_interrupted_call_follows_its_result() -> None:
    healed = heal([user("x"), assistant(use("a")), user("go on")])
    assert healed.messages[2] == user(CUT_OFF, "go on")


def test_every_parallel_call_is_answered_in_one_message() -> None:
    said = [user("x"), assistant(use("a"), use("b"), use("c")), user(result("b"))]
    last = heal(said).messages[2]["content"]
    assert [block["tool_use_id"] for block in last] == ["b", "a", "c"]
    assert last[0] == result("b")


def test_results_in_several_messages_are_put_into_one_before_all_words() -> None:
    said = [
        user("x"),
        assistant(use("a"), use("b")),
        user(result("a"), "note"),
        user(result("b")),
        user("go on"),
    ]
    assert heal(said).messages[2:] == [user(result("a"), result("b"), "note", "go on")]


def test_a_result_without_its_call_is_dropped() -> None:
    healed = heal([user(result("gone")), assistant("y"), user("z", result("gone"))])
    assert healed.messages == [user(OPENING), assistant("y"), user("z")]
    assert sum("answers no open call" in repair for repair in healed.repairs) == 2


def test_a_second_result_for_a_call_is_dropped() -> None:
    said = [user("x"), assistant(use("a")), user(result("a", "one"), result("a", "two"))]
    assert heal(said).messages[2] == user(result("a", "one"))


def test_a_repeated_id_is_renamed_together_with_its_result() -> None:
    said = [
        user("x"),
        assistant(use("a")),
        user(result("a", "one")),
        assistant(use("a")),
        user(result("a", "two")),
    ]
    assert heal(said).messages[3:] == [assistant(use("a_2")), user(result("a_2", "two"))]


def test_one_id_for_two_calls_of_a_batch_loses_neither_result() -> None:
    said = [
        user("x"),
        assistant(use("a", q=1), use("a", q=2)),
        user(result("a", "one"), result("a", "two")),
    ]
    assert heal(said).messages[1:] == [
        assistant(use("a", q=1), use("a_2", q=2)),
        user(result("a", "one"), result("a_2", "two")),
    ]


def test_a_renamed_id_never_takes_one_that_is_there() -> None:
    said = [user("x"), assistant(use("a"), use("a_2"), use("a"))]
    ids = [block["id"] for block in heal(said).messages[1]["content"]]
    assert ids == ["a", "a_2", "a_3"]


def test_ids_and_names_of_other_providers_are_made_ones_the_api_takes() -> None:
    said = [user("x"), assistant(use("f.x:0", "f.x")), user(result("f.x:0"))]
    assert heal(said).messages[1:] == [assistant(use("f_x_0", "f_x")), user(result("f_x_0"))]


def test_empty_texts_are_left_out_and_so_is_a_message_of_nothing_else() -> None:
    said = [user("x"), assistant("", use("a")), user(result("a")), assistant(" "), user("y")]
    assert heal(said).messages == [user("x"), assistant(use("a")), user(result("a"), "y")]


def test_a_message_without_content_is_dropped() -> None:
    healed = heal([user("x"), {"role": "assistant", "content": None}, {"role": "user"}])
    assert healed.messages == [user("x")]
    assert len(healed.repairs) == 2


def test_a_call_without_arguments_or_name_is_made_one_the_api_takes() -> None:
    said = [user("x"), assistant({"type": "tool_use", "id": "a", "input": None})]
    assert heal(said).messages[1] == assistant(use("a", "unnamed"))


def test_only_what_was_cut_is_reported_as_cut() -> None:
    blocks = [text("short"), text("")]
    said = [user("x"), assistant(use("a")), user(result("a", blocks))]
    assert not any("was cut" in repair for repair in heal(said).repairs)
    said = [user("x"), assistant(use("a")), user(result("a", [text("x" * 50_000)]))]
    assert any("was cut" in repair for repair in heal(said).repairs)


def test_a_text_for_content_becomes_a_block() -> None:
    assert heal([{"role": "user", "content": "x"}]).messages == [user("x")]


def test_what_stands_on_the_wrong_side_is_left_out() -> None:
    said = [user("x", use("a"), thinking()), assistant("y", result("a")), user("z")]
    assert heal(said).messages == [user("x"), assistant("y"), user("z")]


def test_an_empty_result_is_a_fact_that_is_told() -> None:
    for content in ("", " ", [], [text("")]):
        said = [user("x"), assistant(use("a")), user(result("a", content))]
        assert heal(said).messages[2] == user(result("a", NO_OUTPUT))


def test_half_a_character_is_replaced_and_two_halves_are_joined() -> None:
    said = [
        user("a\ud83d"),
        assistant(thinking("b\ud83d"), use("a", q="\ud83d\ude00")),
        user(result("a", "c\ude00")),
    ]
    assert heal(said).messages == [
        user("a\ufffd"),
        assistant(use("a", q="\U0001f600")),
        user(result("a", "c\ufffd")),
    ]


def test_an_over_long_result_keeps_its_head_and_its_tail() -> None:
    long = "<" + "\U0001f600" * RESULT_CHARS_MAX + ">"
    said = [user("x"), assistant(use("a")), user(result("a", long))]
    cut = heal(said).messages[2]["content"][0]["content"]
    assert len(cut) == RESULT_CHARS_MAX
    assert cut.startswith("<\U0001f600") and cut.endswith("\U0001f600>")
    assert "left out" in cut


def test_the_blocks_of_a_result_share_one_bound() -> None:
    blocks = [text("x" * 30_000), text("y" * 30_000), text("z")]
    said = [user("x"), assistant(use("a")), user(result("a", blocks))]
    kept = heal(said).messages[2]["content"][0]["content"]
    assert sum(len(block["text"]) for block in kept) == RESULT_CHARS_MAX
    assert kept[0] == blocks[0]


def test_thinking_without_words_or_without_signature_stays_as_it_came() -> None:
    unsigned = {"type": "thinking", "thinking": "hm"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    answer = assistant(thinking(""), unsigned, redacted, "y", use("a"))
    assert heal([user("x"), answer]).messages[1] == answer
