"""Whatever a workflow may declare is asked for by the code that runs it: no option does nothing.
Method: the fields of every definition, against the attributes that engine and worker read. Steps
are looked at by kind while they run: tests/engine/test_options_of_steps.py."""

from __future__ import annotations

import ast
from pathlib import Path

import msgspec
import pytest

from treadle.sdk.collecting import Batch, Debounce
from treadle.sdk.definition import Retry, WorkflowDefinition
from treadle.sdk.flow import Concurrency, RateLimit

TYPES: tuple[type[msgspec.Struct], ...] = (
    WorkflowDefinition,
    Retry,
    Concurrency,
    RateLimit,
    Debounce,
    Batch,
)
#: Where an option would only be written down, or judged.
DECLARING = frozenset(("builder.py", "building.py", "schema.py", "structure.py", "validation.py"))
#: What people read, and nothing runs by.
FOR_PEOPLE = frozenset({"description"})


@pytest.fixture(scope="module")
def read(request: pytest.FixtureRequest) -> frozenset[str]:
    """Every attribute that the code reads, apart from that which declares options."""
    root: Path = request.config.rootpath
    found: set[str] = set()
    for part in ("engine", "worker", "sdk"):
        for path in (root / part).rglob("*.py"):
            if path.name in DECLARING or "_check" in path.name:
                continue
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found |= {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            }
    return frozenset(found)


@pytest.mark.slow
@pytest.mark.parametrize("declared", TYPES, ids=lambda each: each.__name__)
def test_every_option_is_asked_for(declared: type[msgspec.Struct], read: frozenset[str]) -> None:
    options = set(declared.__struct_fields__) - FOR_PEOPLE
    assert options - read == set(), "an option that nobody asks for does nothing"
