"""Texts that a step's definition has for its handler: is its ``metadata`` sound?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from treadle.sdk import wording
from treadle.sdk.errors import Problem
from treadle.sdk.limits import STEP_METADATA_CHARS_MAX, STEP_METADATA_MAX


def problems_of_metadata(metadata: Mapping[str, str], path: str) -> Iterator[Problem]:
    """Yield what is wrong with the metadata of a step."""
    chars = sum(len(name) + len(text) for name, text in metadata.items())
    if len(metadata) > STEP_METADATA_MAX or chars > STEP_METADATA_CHARS_MAX:
        yield Problem(
            path,
            f"it has {len(metadata)} entries of {chars} characters, and {STEP_METADATA_MAX} of "
            f"{STEP_METADATA_CHARS_MAX} are allowed, because each task of the step carries them. "
            "Put the rest into the input.",
        )
        return
    for name, text in metadata.items():
        if not name:
            yield Problem(path, "an entry has no name. Give it one.")
        elif wording.is_cut(name + text):
            yield Problem(wording.field(path, wording.key(name)), wording.CUT)
