import pytest

from timetable.span import Span, gaps, merge


def test_a_span_ends_after_it_starts() -> None:
    with pytest.raises(ValueError, match="must end after it starts"):
        Span(10, 10)


def test_spans_that_only_touch_do_not_overlap() -> None:
    assert Span(0, 10).overlaps(Span(9, 20))
    assert not Span(0, 10).overlaps(Span(10, 20))
    assert not Span(10, 20).overlaps(Span(0, 10))


def test_merging_joins_what_overlaps_or_touches() -> None:
    assert merge([Span(5, 10), Span(0, 5), Span(20, 30)]) == [Span(0, 10), Span(20, 30)]


def test_merging_keeps_the_longer_of_two_nested_spans() -> None:
    assert merge([Span(0, 60), Span(10, 20)]) == [Span(0, 60)]


def test_gaps_are_what_nothing_covers() -> None:
    assert gaps(Span(0, 60), [Span(10, 20), Span(40, 60)]) == [Span(0, 10), Span(20, 40)]
    assert gaps(Span(0, 60), []) == [Span(0, 60)]
