"""How hard the properties look: ``HYPOTHESIS_PROFILE=dev|ci|thorough|mutation``.

``dev`` looks elsewhere each time. ``ci`` looks at the same examples on every machine, so a red
build is red for its change; it is what the environment variable ``CI`` chooses.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]

# No deadlines: a busy machine is no bug of the core.
settings.register_profile("dev", max_examples=30, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=3_000)
# A mutant is killed by any failing example; nobody reads a small one.
settings.register_profile(
    "mutation",
    settings.get_profile("ci"),
    max_examples=40,
    database=None,
    phases=[Phase.explicit, Phase.generate],
)


def choose() -> None:
    """Load the profile that the environment asks for."""
    chosen = "ci" if "CI" in os.environ else "dev"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", chosen))
