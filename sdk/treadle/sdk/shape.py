"""How a value is put together from outputs: a step's id, or an object of shapes. Pure.

"fetch"                              the output of step fetch, as it is
{"a": "a", "plan": {"x": "plan--x"}} an object of outputs
"=plan--x"                           what the plan of a planner gives that step
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Shape = str | dict[str, "Shape"]

GIVEN = "="
"""Before the id of a step: no id begins with it."""


def leaves(shape: Shape) -> Iterator[str]:
    """Yield the ids of a shape, in their order."""
    if isinstance(shape, str):
        yield shape
        return
    for part in shape.values():
        yield from leaves(part)


def assembled(shape: Shape, values: Mapping[str, bytes]) -> bytes:
    """Return the JSON of a shape, given that of its leaves; keys need no escaping."""
    if isinstance(shape, str):
        return bytes(values[shape])
    parts = (b'"%b":%b' % (key.encode(), assembled(part, values)) for key, part in shape.items())
    return b"{" + b",".join(parts) + b"}"
