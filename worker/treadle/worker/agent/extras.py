"""Whether the packages of an optional extra are there, said before the first of them is missed."""

from __future__ import annotations

from importlib.util import find_spec


def require(what: str, extra: str, *packages: str) -> None:
    """Raise ``ModuleNotFoundError``, with what to install, for a package that is not there."""
    for package in packages:
        if find_spec(package) is None:
            raise ModuleNotFoundError(
                f"{what} needs the package {package!r}, which is not installed: it belongs to an "
                f"optional extra. Install treadle[{extra}]: pip install 'treadle[{extra}]'.",
                name=package,
            )
