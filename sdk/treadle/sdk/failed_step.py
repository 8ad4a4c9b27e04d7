"""What a step is given that handles the failure of others."""

from __future__ import annotations

import msgspec

from treadle.sdk.messages import Failure


class FailedStep(msgspec.Struct, frozen=True):
    """The step that has failed for good, and why: the input of its ``on_failure`` step."""

    step: str
    failure: Failure
