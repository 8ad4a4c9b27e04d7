"""Where the examples are: beside the sources in a checkout, inside the package in a wheel."""

from __future__ import annotations

from pathlib import Path

from treadle.sdk.errors import UserError


def examples_dir() -> Path:
    """Return the directory of the examples; raise ``UserError`` if they were not installed."""
    here = Path(__file__).resolve()
    checkout, wheel = here.parents[4] / "examples", here.parents[2] / "_examples"
    for directory in (checkout, wheel):
        if (directory / "code_repair" / "app.py").is_file():
            return directory
    raise UserError(
        f"the demo's workflow is neither in {checkout} nor in {wheel}, so it was left out when "
        f"treadle was installed. Install it again: pip install --force-reinstall 'treadle[demo]'"
    )
