"""What a condition may do: large values are looked at so often, and numbers grow so long, no more.

Method: what held an engine for seconds, refused; what large inputs ask for, answered; and any
calculation with large numbers. What is counted is asserted, and no time.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sdk.strategies import json_values

from treadle.sdk import condition_work
from treadle.sdk.condition_work import DIGITS_MAX, UNITS_MAX, TooMuch, Work
from treadle.sdk.conditions import ConditionError, as_key, evaluate, value_of


def large(items: int) -> dict[str, object]:
    """Return an input whose lists have so many items."""
    return {
        "many": list(range(items)),
        "rows": [[0, 0, 0]] * (items // 2),
        "row": [0, 0, 1],
        "words": {str(n): n for n in range(items // 2)},
        "text": "a" * (10 * items),
        "digits": "1" * (10 * items),
        "nines": "9" * 4_000,
        "n": -1,
    }


LARGE = large(100_000)


def chained(part: str, times: int, by: str = " or ") -> str:
    return by.join([part] * times)


@pytest.mark.parametrize(
    "text",
    [
        'int(input["nines"]) * int(input["nines"])',
        chained('int(input["nines"])', 140, "*"),
        'str(int("9" * 2000) * int("9" * 2000) * int("9" * 2000))',
        'int("9" * 4300) + 1',
        '0 - int("9" * 4300) - 1',
        'round(int("9" * 4300), -4299)',
        "round(1, -99999999)",
    ],
)
def test_a_number_that_grows_too_long_is_refused_before_it_is_made(text: str) -> None:
    with pytest.raises(ConditionError, match=r"a number of more than 4,300 digits\. Let a step"):
        value_of(text, LARGE, {})


@pytest.mark.parametrize(
    "text",
    [
        chained('min(input["many"]) > 1', 15),
        chained('max(input["many"]) < 1', 15),
        chained('input["n"] in input["many"]', 15),
        chained('input["row"] in input["rows"]', 10),
        chained('input["rows"] + [1] == input["rows"] + [2]', 4),
        chained('len(str(input["words"])) < 1', 8),
        chained('"aaaaaaaaab" in input["text"]', 30),
        chained('max(input["text"]) < "a"', 5),
        chained('len(input["many"][0:99999]) < 1', 100),
        chained('len("a" * 99999) < 1', 200),
        chained("str(int('9' * 4300)) < '1'", 200),
        chained('float(input["digits"]) < 1', 10),
        chained("1 > 2", 500),
        '[input["many"]] * 100000 == 1',
        "str([input] * 100) < 'a'",
    ],
)
def test_large_values_are_looked_at_so_often_and_no_more(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(condition_work, "UNITS_MAX", UNITS_MAX // 20)
    with pytest.raises(ConditionError, match=r"would look at more|than 1,000 steps") as caught:
        evaluate(text, large(5_000), {})
    assert "Let a step find out what it asks" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('input["n"] in input["many"] or 99999 in input["many"]', True),
        ('len(input["many"]) == 100000 and max(input["many"]) == 99999', True),
        ('input["rows"] == [] or input["many"] != input["rows"]', True),
        ('"error" in input["text"]', False),
        ('"777" in input["words"] and get(input["words"], "777") == 777', True),
        ('len(str(input["many"])) > 100000', True),
        ('int(input["nines"]) // int(input["nines"]) == 1', True),
        ('str(int("9" * 4300)) == "9" * 4300', True),
        ('int("9" * 2150) * int("9" * 2150) > 0', True),
    ],
)
def test_what_large_inputs_are_asked_is_answered(text: str, holds: bool) -> None:
    assert evaluate(text, LARGE, {}) is holds


def test_a_key_that_holds_large_values_many_times_is_refused_before_it_is_written() -> None:
    with pytest.raises(ConditionError, match="which is no key"):
        as_key("input", [LARGE["many"]] * 20)


_numbers = st.one_of(
    st.sampled_from(("7", "0", "(0-1)", "0.5", 'input["long"]', 'int("9" * 4300)')),
    st.integers(1, DIGITS_MAX).map(lambda digits: f'int("8" * {digits})'),
)


def _more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(("+", "-", "*", "/", "//", "%")), inner)
    return st.one_of(
        two.map(lambda t: f"({' '.join(t)})"),
        st.tuples(inner, st.integers(-5_000, 9)).map(lambda t: f"round({t[0]}, {t[1]})"),
        inner.map(lambda each: f"int(str({each}))"),
        inner.map(lambda each: f"max(1, -{each})"),
    )


@settings(max_examples=50)
@given(st.recursive(_numbers, _more, max_leaves=10))
def test_no_calculation_gives_a_number_that_is_longer(text: str) -> None:
    try:
        value = value_of(text, {"long": 10**4_299}, {})
    except ConditionError:
        return
    assert isinstance(value, int | float)
    assert isinstance(value, float) or len(str(abs(value))) <= DIGITS_MAX


@settings(max_examples=50)
@given(json_values, st.integers(1, 5))
def test_a_walk_counts_all_values_as_often_as_they_occur(value: object, times: int) -> None:
    def values(each: object) -> int:
        if isinstance(each, dict):
            return 1 + len(each) + sum(map(values, each.values()))
        return 1 + sum(map(values, each)) if isinstance(each, list) else 1

    work, count = Work(), values(value)
    work.walk([value] * times)
    written = len(msgspec.json.encode(value)) * times
    work.touch(UNITS_MAX - 20 * (written + times + 1))  # No more than some units a character.
    with pytest.raises(TooMuch):
        work.touch(20 * (written + times + 1) - times * count + 1)
