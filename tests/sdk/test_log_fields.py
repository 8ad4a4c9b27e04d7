"""What stands on a line of the log is read by people.
Method: examples of values."""

from treadle.sdk.log_fields import spaced


def test_fields_stand_as_names_and_values_with_quotes_where_they_need_them() -> None:
    fields = {"run": "r1", "events": ["e1", "e2"], "why": 'its "process" is gone', "error": ""}
    assert spaced(fields) == ('run=r1 events=e1,e2 why="its \\"process\\" is gone" error=""')
    assert spaced({"count": 3, "text": "a\nb", "pair": "a=b"}) == 'count=3 text="a\\nb" pair="a=b"'
    assert spaced({}) == ""
