"""The package under repair as files, edits and test runs, without a model or a server.

Method: unpack the real example package, edit it, and run its real tests.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import workspace as subject
from workspace import EditRefused, Workspace, read_files, unified_diff

pytestmark = pytest.mark.slow

PACKAGE = Path(subject.__file__).with_name("timetable")


@pytest.fixture
def unpacked(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "copy", read_files(PACKAGE))


def test_the_package_really_fails_and_its_tests_really_run(unpacked: Workspace) -> None:
    result = asyncio.run(unpacked.run_tests())
    assert (result.passed, len(result.failed)) == (12, 10)
    assert result.failed[0] == "tests/test_agenda.py::test_an_agenda_lists_the_day_in_order"
    assert "'09:5 to 09:20  standup (15m)' != '09:05" in result.output


def test_an_edit_changes_the_copy_and_never_the_original(unpacked: Workspace) -> None:
    before = read_files(PACKAGE)
    unpacked.replace("timetable/clock.py", ":{minute % 60}", ":{minute % 60:02}")
    assert asyncio.run(unpacked.run_tests()).passed == 14
    assert read_files(PACKAGE) == before
    diff = unified_diff(before, unpacked.files)
    assert diff.startswith("--- a/timetable/clock.py\n+++ b/timetable/clock.py\n")
    assert '-    return f"{minute // 60:02}:{minute % 60}"\n' in diff
    assert '+    return f"{minute // 60:02}:{minute % 60:02}"\n' in diff


def test_a_syntax_error_is_a_failing_suite(unpacked: Workspace) -> None:
    unpacked.replace("timetable/clock.py", "import re", "import re(")
    result = asyncio.run(unpacked.run_tests())
    assert result.failed and "SyntaxError" in result.output


def test_tests_that_never_end_are_killed(
    unpacked: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "SUITE_TIMEOUT_S", 0.5)
    unpacked.replace("timetable/clock.py", "import re", "import re\nwhile True: pass")
    result = asyncio.run(unpacked.run_tests())
    assert result.failed == ("the whole suite",) and "did not end within 0.5 s" in result.output


@pytest.mark.parametrize(
    ("path", "old", "why"),
    [
        ("../outside.py", "x", "there is no file"),
        ("/etc/passwd", "root", "there is no file"),
        ("tests/../timetable/clock.py", "import re", "there is no file"),
        ("tests/test_clock.py", "import pytest", "may not change"),
        ("pyproject.toml", "testpaths", "may not change"),
        ("timetable/clock.py", "minute", "occurs 1[0-9]+ times"),
        ("timetable/clock.py", "no such text", "occurs 0 times"),
        ("timetable/clock.py", "", "occurs 0 times"),
    ],
)
def test_an_edit_outside_the_package_or_without_a_single_place_is_refused(
    unpacked: Workspace, path: str, old: str, why: str
) -> None:
    before = dict(unpacked.files)
    with pytest.raises(EditRefused, match=why):
        unpacked.replace(path, old, "y")
    assert unpacked.files == before


def test_files_that_would_land_outside_are_not_unpacked(tmp_path: Path) -> None:
    with pytest.raises(EditRefused, match="lies outside"):
        Workspace(tmp_path / "copy", {"../outside.py": "x"})
    assert not (tmp_path / "outside.py").exists()


def test_the_edited_code_does_not_see_the_key_of_the_model(
    unpacked: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    probe = "import os, re\nassert 'ANTHROPIC_API_KEY' not in os.environ"
    unpacked.replace("timetable/clock.py", "import re", probe)
    assert asyncio.run(unpacked.run_tests()).passed == 12
