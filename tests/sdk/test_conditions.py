"""Conditions: what they say, what they refuse, and that they always end.
Method: examples; any text, and any expression of the allowed parts, against any JSON."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.strategies import json_values

from treadle.sdk.conditions import ConditionError, as_key, evaluate, key_of, problems_of

REVIEW = {"review": {"verdict": "ok", "score": 0.5, "notes": []}, "lint": None}
ORDER = {"total": 250, "gift": False, "items": ["a", "b"], "name": "Ada"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('input["total"] > 100', True),
        ('input["total"] > 100 and input["gift"]', False),
        ('not input["gift"] or null', True),
        ('steps["review"]["verdict"] in ["ok", "minor"]', True),
        ('steps["lint"] == null', True),
        ('steps["lint"] is None', True),
        ('"b" in input["items"] and input["items"][1] == "b"', True),
        ('len(input["items"]) == 2 and len(steps["lint"]) == 0', True),
        ('get(steps["lint"], "n", 7) == 7', True),
        ('get(input["items"], 9) == null', True),
        ('input["name"][0:2] == "Ad"', True),
        ('(1 if input["gift"] else 2) + 1 == 3', True),
        ('0 < input["total"] % 100 < 60', True),
        ("max(abs(-3), 2) == 3 and min([4, 2]) == 2", True),
        ('round(steps["review"]["score"] * 3) == 2 and int("4") == 4', True),
        ('str(input["total"]) == "250" and float("1.5") == 1.5', True),
        ('steps["review"]["notes"]', False),
        ("true and not false", True),
    ],
)
def test_a_condition_says(text: str, holds: bool) -> None:
    assert list(problems_of(text, tuple(REVIEW))) == []
    assert evaluate(text, ORDER, REVIEW) is holds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not an expression"),
        ("input >", "is not an expression"),
        ("x = 3", "is not an expression"),
        ("input; input", "is not an expression"),
        ("import os", "is not an expression"),
        ("input.total > 3", 'Write ["total"]'),
        ("().__class__", "__class__"),
        ("inputs > 3", "Did you mean 'input'?"),
        ("length(input)", "is not known"),
        ("eval('1')", "is not known"),
        ("__import__('os')", "is not known"),
        ('steps["fetch"]', "'fetch', which is not in after"),
        ("2 ** 9", "it uses Pow"),
        ("1 << 9", "it uses LShift"),
        ("f'{input:>9}'", "it uses JoinedStr"),
        ("[x for x in input]", "it uses ListComp"),
        ("(lambda: 1)()", "it uses Lambda"),
        ("len(*input)", "it uses Starred"),
        ("(input := 3)", "it uses NamedExpr"),
        ("int('9', base=3)", "it uses keyword"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_what_to_do(text: str, problem: str) -> None:
    assert problem in " ".join(problems_of(text, tuple(REVIEW)))


@pytest.mark.parametrize(
    "text",
    [
        'input["missing"]',
        'input["items"][9]',
        'steps["lint"] > 3',
        'input["total"] / 0',
        '"%999999999d" % 3',
        '"a" * 999999999 == "b"',
        'int("x")',
        '"9" * 100000 > 3',
        "2 ** 9",
        "input.total",
        "undefined",
    ],
)
def test_what_cannot_be_said_is_an_error_that_names_the_condition(text: str) -> None:
    with pytest.raises(ConditionError) as caught:
        evaluate(text, ORDER, REVIEW)
    assert f"condition {text} cannot be evaluated" in str(caught.value)
    assert re.search(r"get\((value|input), ", str(caught.value))


def test_a_key_that_the_input_has_not_is_told_with_where_defaults_are_applied() -> None:
    def told(text: str) -> str:
        with pytest.raises(ConditionError) as caught:
            evaluate(text, ORDER, REVIEW)
        return str(caught.value)

    assert told('input["wrapped"]') == (
        "condition input[\"wrapped\"] cannot be evaluated: the input has no 'wrapped' (KeyError). "
        'Defaults of a type are applied in handlers only: write get(input, "wrapped", DEFAULT).'
    )
    for elsewhere in (
        'steps["review"]["wrapped"]',
        'input["items"][0]["wrapped"]',
        'input["items"][9]',
    ):
        assert "the input has no" not in told(elsewhere)
    assert not evaluate('get(input, "wrapped", false)', ORDER, REVIEW)
    assert not evaluate('"wrapped" in input and input["wrapped"]', ORDER, REVIEW)


def test_a_number_that_json_cannot_write_is_no_key() -> None:
    huge = 10**4_299
    assert key_of('input["n"]', {"n": 7}, {}) == "7"
    with pytest.raises(ConditionError, match="a huge int, which is no key"):
        as_key('input["n"]', huge * 10)


@given(st.text(max_size=40), json_values)
def test_any_text_is_judged_and_asked_without_another_error(text: str, value: object) -> None:
    problems = list(problems_of(text, ("a",)))
    try:
        evaluate(text, value, {"a": value})
    except ConditionError:
        return
    assert problems or text.strip()


_leaves = st.sampled_from(
    ("input", 'steps["a"]', "1", "0.5", '"x"', "null", "true", "[]", "{}", 'input["k"]')
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, inner)
    binary = st.sampled_from(("+", "-", "*", "/", "//", "%", "==", "<", "in", "and", "or"))
    return st.one_of(
        st.tuples(two, binary).map(lambda t: f"({t[0][0]} {t[1]} {t[0][1]})"),
        inner.map(lambda x: f"(not {x})"),
        two.map(lambda t: f"{t[0]}[{t[1]}]"),
        two.map(lambda t: f"get({t[0]}, {t[1]})"),
        st.tuples(st.sampled_from(("len", "abs", "str", "int")), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
    )


@given(st.recursive(_leaves, _grown, max_leaves=12), json_values)
def test_an_expression_of_the_allowed_parts_is_accepted_and_ends(text: str, value: Any) -> None:
    assert list(problems_of(text, ("a",))) == []
    try:
        assert evaluate(text, value, {"a": value}) in (True, False)
    except ConditionError:
        pass


def test_one_evaluation_does_not_see_what_another_was_given() -> None:
    assert evaluate('input == "one"', "one", {})
    assert not evaluate('input == "one"', "two", {})
