"""What is asked for when a run is made of another one, and whether one that is there is just that.

Pure: nothing is read or stored.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from treadle.sdk import wording
from treadle.sdk.definition import MapStep, Step, WorkStep
from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.sdk.messages import Fork, RunRequested

Version = Literal["same", "latest"]
VERSIONS: tuple[Version, ...] = get_args(Version)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for."""

    id: str = ""
    step: str = ""
    """Where it starts again; empty is where it failed, of a retry, else the whole run."""
    iteration: int = -1
    has_input: bool = False
    input: object = None
    is_retry: bool = False
    version: Version = "same"


def retried(run: str | None, version: str) -> Wanted:
    """Return a retry under this id, or under that of every retry."""
    return Wanted(id=_id_of(run), is_retry=True, version=checked_version(version))


def asked(
    step: str | None, iteration: object, value: object, run: str | None, version: str
) -> Wanted:
    """Return a fork; ``UNSET`` is no other input."""
    return Wanted(
        id=_id_of(run),
        step="" if step is None else check_id("step", step),
        iteration=-1 if iteration is None else _iteration_of(step, iteration),
        has_input=value is not msgspec.UNSET,
        input=None if value is msgspec.UNSET else value,
        version=checked_version(version),
    )


def checked_version(version: str) -> Version:
    """Return which version a new run takes; raise ``UserError`` if there is none of that name."""
    none = f"version {wording.shown(version)} is none of {', '.join(VERSIONS)}."
    why = "A new run takes that of the run it is made of, or the workflow's newest."
    return wording.one_of(
        version, VERSIONS, lambda hint: f"{none} {why} {hint or 'Choose one of them.'}"
    )


def check_input_of(step: Step) -> None:
    """Raise ``UserError`` if a step cannot be given another input."""
    if isinstance(step, MapStep):
        raise UserError(
            f"step {step.id!r} is a map and is given no other input: it has no list of its own, "
            "and reads it from the step before it, or from the run's input. Fork from the step "
            "that makes the list, or the whole run with another input."
        )
    if not isinstance(step, WorkStep):
        raise UserError(
            f"step {step.id!r} is not executed by a worker and is given no input. Fork from a "
            "step that is, or leave the input out."
        )


def is_same(have: RunRequested, wanted: RunRequested) -> bool:
    """True if a request that is stored asks for the same; the input of a step is not in it."""
    one, other = have.fork, wanted.fork
    return (
        one is not None
        and other is not None
        and (one.run, one.step, one.iteration, have.definition)
        == (other.run, other.step, other.iteration, wanted.definition)
        and _is_alike(one, other)
        and value(have.input) == value(wanted.input)
    )


def _is_alike(have: Fork, wanted: Fork) -> bool:
    # A request without a nonce was stored when requests did not say what they were.
    said = (have.is_retry, have.has_input)
    return not have.nonce or said == (wanted.is_retry, wanted.has_input)


def value(raw: msgspec.Raw) -> Any:
    """Return what the JSON says."""
    return msgspec.json.decode(raw)


def _iteration_of(step: str | None, iteration: object) -> int:
    if isinstance(iteration, bool) or not isinstance(iteration, int):
        raise UserError(
            f"iteration {wording.shown(iteration)} is no number: iterations of a loop are counted "
            "from 0. Give an int."
        )
    if step is None or iteration < 0:
        raise UserError(
            f"iteration {iteration} is of no step: it counts from 0. Name the loop with from_step."
        )
    return iteration


def _id_of(run: str | None) -> str:
    return "" if run is None else check_id("run id", run)
