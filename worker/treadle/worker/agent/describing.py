"""What an agent was made of, for a trace with content: instructions and tools.

The journal has what was said; this only a worker knows. It is told with the first answer of each
conversation, once for each agent of a verdict, and never beyond ``BYTES_MAX``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from treadle.sdk.tracing import content, names
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.entries import Answered, Entry, Judged, Nested, Opened
from treadle.worker.agent.core.state import State
from treadle.worker.agent.tracing import Written

if TYPE_CHECKING:
    from treadle.worker.agent.equipment import Equipment

BYTES_MAX = 64 * 1024
"""Of one verdict. Two attributes fit, however much quoting adds to them."""

Path = tuple[str, ...]


def described(
    state: State, written: Collection[Written], equipment: Equipment
) -> dict[int, dict[str, str]]:
    """Return attributes by the place of the first answer of each conversation.

    ``state`` is that before the iteration, ``written`` what the iteration has stored.
    """
    begun: set[Path] = set()
    calls: dict[Path, ToolCall] = {}
    _open(state, (), begun, calls)
    told: set[tuple[str, ...]] = set()
    found: dict[int, dict[str, str]] = {}
    left = BYTES_MAX
    for number, entry, _ in written:
        path, inner = _place(entry)
        match inner:
            case Opened():
                begun.add(path)
            case Judged():
                calls |= {(*path, call.id): call for call in inner.calls}
            case Answered() if path in begun:
                begun.remove(path)
                agent = _equipment_of(equipment, path, calls)
                if agent is None or (agent.spec.name, agent.spec.versions.prompt) in told:
                    continue
                told.add((agent.spec.name, agent.spec.versions.prompt))
                attributes = _of(agent)
                size = len(msgspec.json.encode(attributes))
                if size <= left:
                    left -= size
                    found[number] = attributes
            case _:
                pass
    return found


def _open(state: State, path: Path, begun: set[Path], calls: dict[Path, ToolCall]) -> None:
    """Add the conversations that have no answer yet, and the calls that led to them."""
    if not state.used.steps:
        begun.add(path)
    calls |= {(*path, call.id): call for call in state.calls}
    for call_id, child in state.children.items():
        _open(child, (*path, call_id), begun, calls)


def _of(equipment: Equipment) -> dict[str, str]:
    spec, found = equipment.spec, dict[str, str]()
    if spec.instructions:
        found[names.INSTRUCTIONS] = content.instructions(spec.instructions)
    tools = [*spec.tools, *([spec.output_tool] if spec.output_tool is not None else [])]
    if tools:
        listed = ((tool.name, tool.description, tool.input_schema) for tool in tools)
        found[names.DEFINITIONS] = content.definitions(listed)
    return found


def _place(entry: Entry) -> tuple[Path, Entry]:
    path: list[str] = []
    while isinstance(entry, Nested):
        path.append(entry.call_id)
        entry = entry.entry
    return tuple(path), entry


def _equipment_of(
    equipment: Equipment, path: Path, calls: dict[Path, ToolCall]
) -> Equipment | None:
    for depth in range(len(path)):
        call = calls.get(path[: depth + 1])
        agent = None if call is None else equipment.subagents.get(call.name)
        if call is None or agent is None:
            return None
        equipment = agent.equipped(equipment, call)
    return equipment
