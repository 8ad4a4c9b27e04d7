"""Is a run what its case expects? All that is not, as sentences. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.worker.agent.evals.case import Expected, NeededEvidence
from treadle.worker.agent.evals.diffing import shown
from treadle.worker.agent.evals.trajectory import Call, Trajectory


def check(
    expected: Expected,
    found: Trajectory,
    *,
    tool_calls: int,
    events: Collection[str],
    tool_name: Callable[[str], str],
) -> list[str]:
    """Return what the run does not hold of what is expected, [] if nothing.

    ``tool_calls`` is what the run counted, ``events`` are the runtime's that were seen.
    """
    failures: list[str] = []
    if expected.stop_reason is not None and found.stop_reason != expected.stop_reason:
        why = f" ({found.detail})" if found.detail else ""
        failures.append(f"it stopped with {found.stop_reason}{why}, not {expected.stop_reason}")
    most = expected.max_tool_calls
    if most is not None and tool_calls > most:
        failures.append(f"{tool_calls} tool calls ran, and {most} are allowed")
    for name in expected.forbidden_tools:
        ran = sum(call.ran and call.name == tool_name(name) for call in found.calls)
        if ran:
            failures.append(f"{name} is forbidden, and ran {ran} time{'' if ran == 1 else 's'}")
    seen = {*found.trace, *events}
    failures += [
        f"the trace has no {word}" for word in expected.requires_trace_events if word not in seen
    ]
    failures += _evidence(expected.evidence, found, tool_name)
    if expected.output is not msgspec.UNSET:
        failures += _output(expected.output, found)
    return failures


def _evidence(
    needed: Sequence[NeededEvidence], found: Trajectory, tool_name: Callable[[str], str]
) -> Iterator[str]:
    for each in needed:
        if not any(_shows(call, each, tool_name(each.tool)) for call in found.calls):
            args = f" with {shown(each.args)}" if each.args else ""
            text = f" whose result holds {each.contains!r}" if each.contains else ""
            yield f"evidence is missing: no successful call of {each.tool}{args}{text}"


def _shows(call: Call, needed: NeededEvidence, name: str) -> bool:
    return (
        call.name == name
        and call.status == "ok"
        and not any(subset_faults(needed.args, call.runs_with))
        and needed.contains in _text(call)
    )


def _text(call: Call) -> str:
    if isinstance(call.content, str):
        return call.content
    return "\n".join(str(block.get("text", "")) for block in call.content)


def _output(wanted: Any, found: Trajectory) -> list[str]:
    if isinstance(wanted, str) and isinstance(found.output, str):
        if wanted in found.output:
            return []
        return [f"the output does not hold {wanted!r}: {shown(found.output)}"]
    return [f"the output {fault}" for fault in subset_faults(wanted, found.output)]


def subset_faults(wanted: object, found: object, path: str = "") -> Iterator[str]:
    """Yield where ``found`` does not hold what is wanted: fields of mappings, at any depth."""
    where = f"has at {path} " if path else "is "
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            yield f"{where}{shown(found)}, not a mapping"
            return
        fields = cast("Mapping[str, object]", found)
        for key, value in cast("Mapping[str, object]", wanted).items():
            place = f"{path}.{key}" if path else key
            if key in fields:
                yield from subset_faults(value, fields[key], place)
            else:
                yield f"lacks {place}, which should be {shown(value)}"
    elif isinstance(wanted, list):
        items = cast("list[object]", wanted)
        others = cast("list[object]", found) if isinstance(found, list) else None
        if others is None or len(items) != len(others):
            yield f"{where}{shown(found)}, not {len(items)} items as in {shown(wanted)}"
            return
        for index, (item, other) in enumerate(zip(items, others, strict=True)):
            yield from subset_faults(item, other, f"{path}[{index}]")
    elif wanted != found or isinstance(wanted, bool) != isinstance(found, bool):
        yield f"{where}{shown(found)}, not {shown(wanted)}"
