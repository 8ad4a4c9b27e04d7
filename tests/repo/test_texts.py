"""Rules of what is written: no address of a machine or a registry, links that lead somewhere,
decisions of one page. Method: read the text files; nothing runs."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

# Spelled in pieces, so that this file passes its own check.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("deb", "debian", "org"),
        ("proxy", "golang", "org"),
    )
]
_HOMES = "|".join(["w" + "ork", "farm", "home", "Users"])
MACHINE_PATH = re.compile(rf"(?<![\w.])/(?:{_HOMES})/")
DOWNLOAD = re.compile(r"https?://\S+\.(?:whl|tar\.gz|tgz|zip|deb)\b")

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
SECTION = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)#([^)\s]+)\)")
ADR_SECTIONS = ("## Context", "## Decision", "## Rejected", "## Consequences")
ADR_LINES_MAX = 60
CONTRIBUTING_LINES_MAX = 80


def _read(path: Path) -> str:
    if not path.exists():
        pytest.skip(f"{path.name} does not exist yet")
    return path.read_text(encoding="utf-8")


def test_no_text_names_a_machine_a_registry_or_a_download(
    root: Path, texts: dict[Path, str]
) -> None:
    found: list[str] = []
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), 1):
            named = [host for host in REGISTRIES if host in line]
            if named or MACHINE_PATH.search(line) or DOWNLOAD.search(line):
                found.append(f"{path.relative_to(root)}:{number}: {line.strip()[:100]}")
    assert found == []


_FOREIGN = {"exc", "error", "why", "detail", "message", "reason", "description", "problem"}
"""Names of what an exception or a person says, which may be a sentence or a phrase."""


def _is_foreign(value: ast.expr) -> bool:
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _FOREIGN
        case ast.Call(func=ast.Name(id=name)):
            return name in ("str", "error_text")
        case _:
            return False


@pytest.mark.slow
def test_what_somebody_else_said_is_a_clause_before_a_full_stop(modules: list[Path]) -> None:
    found = [
        f"{path}:{part.lineno}"
        for path in modules
        for text in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(text, ast.JoinedStr)
        for part, after in pairwise(text.values)
        if isinstance(part, ast.FormattedValue) and part.conversion == -1 and not part.format_spec
        if isinstance(after, ast.Constant) and re.match(r"\.(\s|$)", str(after.value))
        if _is_foreign(part.value)
    ]
    assert not found, "put it in clause(...): it may end with a full stop"


def test_every_link_between_documents_leads_somewhere(root: Path, texts: dict[Path, str]) -> None:
    broken = [
        f"{path.relative_to(root)}: {target}"
        for path, text in texts.items()
        if path.suffix == ".md"
        for target in LINK.findall(text)
        if not (path.parent / target).exists()
    ]
    assert broken == []


def _anchors(text: str) -> set[str]:
    """Return the names that headings of a page have as targets of links."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_every_link_to_a_section_leads_to_one(texts: dict[Path, str]) -> None:
    broken: list[str] = []
    for path, text in texts.items():
        if path.suffix != ".md":
            continue
        for target, anchor in SECTION.findall(text):
            page = (path.parent / target).resolve() if target else path
            if page in texts and anchor not in _anchors(texts[page]):
                broken.append(f"{path.name}: {target}#{anchor}")
    assert broken == []


def test_the_readme_lists_every_page(root: Path) -> None:
    linked = set(LINK.findall((root / "README.md").read_text(encoding="utf-8")))
    pages = {f"docs/{path.name}" for path in (root / "docs").glob("*.md")}
    assert sorted(pages - linked) == []


def test_every_decision_has_one_page_and_says_what_was_rejected(root: Path) -> None:
    records = sorted((root / "docs" / "adr").glob("*.md"))
    numbers = [path.name[:4] for path in records]
    assert numbers == [f"{n:04}" for n in range(1, len(records) + 1)]
    for path in records:
        text = path.read_text(encoding="utf-8")
        missing = [section for section in ADR_SECTIONS if section not in text]
        assert not missing, f"{path.name} lacks {missing}"
        assert len(text.splitlines()) <= ADR_LINES_MAX, f"{path.name} is longer than a page"


def test_the_changelog_opens_with_what_is_unreleased(root: Path) -> None:
    headings = re.findall(r"^## (.+)$", _read(root / "CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_the_folders_that_contributing_names_exist(root: Path) -> None:
    text = _read(root / "CONTRIBUTING.md")
    assert len(text.splitlines()) <= CONTRIBUTING_LINES_MAX
    named = re.findall(r"`((?:[\w.-]+/)+)`", text)
    assert named
    assert not [folder for folder in named if not (root / folder).is_dir()]


def test_the_make_targets_that_documents_name_exist(root: Path, texts: dict[Path, str]) -> None:
    targets = set(re.findall(r"^([a-z]+):", (root / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = {
        target
        for path, text in texts.items()
        if path.suffix == ".md"
        for target in re.findall(r"`make ([a-z]+)", text)
    }
    assert named - targets == set()


def test_the_wheel_carries_types_and_examples(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"] == {"examples": "treadle/_examples"}
    # Without it an editable install puts one of the three roots on the path only.
    assert wheel["dev-mode-dirs"] == ["sdk", "engine", "worker"]
    roots = ("sdk/treadle/sdk", "sdk/treadle/cli", "engine/treadle/engine", "worker/treadle/worker")
    for package in roots:
        assert (root / package / "py.typed").exists()
        # Without it import-linter overlooks what the package imports.
        assert (root / package / "__init__.py").exists()
    # A file here would hide the other two roots.
    assert not list(root.glob("*/treadle/__init__.py"))
