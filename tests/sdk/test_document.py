"""The same definition from YAML, from JSON and from Python, and nothing but definitions.
Method: random definitions go out and come back; texts that a lenient reader would accept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.sdk.strategies import QUICK, Fault, definitions, faults

from treadle.sdk.definition import (
    AgentLoopStep,
    Retry,
    TaskStep,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.document import Format, format_definition, load_definition, parse_definition
from treadle.sdk.errors import InvalidDefinition, Problem
from treadle.sdk.limits import DEFINITION_BYTES_MAX
from treadle.sdk.validation import definition_from
from treadle.sdk.yaml_text import write_yaml

FORMATS: tuple[Literal["yaml", "json"], ...] = ("yaml", "json")

REVIEW = """\
name: code-review
steps:
  - {kind: task, id: fetch, type: fetch-diff, retry: {max_attempts: 5}}
  - kind: agent_loop
    id: review
    type: llm-review
    after: [fetch]
    max_iterations: 10
    loop_delay_s: 0.5
"""


def _problems(text: str, kind: Format = "yaml") -> dict[str, str]:
    try:
        parse_definition(text, kind)
    except InvalidDefinition as exc:
        return {problem.path: problem.text for problem in exc.problems}
    return {}


def _all_problems(text: str, kind: Format) -> tuple[Problem, ...]:
    with pytest.raises(InvalidDefinition) as caught:
        parse_definition(text, kind)
    return caught.value.problems


# -------------------------------------------------------------------- out and back


@QUICK
@given(definitions(), st.sampled_from(FORMATS))
def test_a_definition_written_and_read_is_the_same_with_the_same_version(
    definition: WorkflowDefinition, kind: Format
) -> None:
    again = parse_definition(format_definition(definition, kind), kind)
    assert again == definition
    assert content_hash(again) == content_hash(definition)


@QUICK
@given(faults())
def test_yaml_json_and_python_refuse_the_same_for_the_same_reasons(fault: Fault) -> None:
    with pytest.raises(InvalidDefinition) as caught:
        definition_from(fault.plain)
    assert _all_problems(json.dumps(fault.plain), "json") == caught.value.problems
    assert _all_problems(write_yaml(fault.plain), "yaml") == caught.value.problems


@QUICK
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@?, \n\t\\0159.\ud800\x00é", max_size=60))
@example("&a [*a]")
@example('"\\UFFFFFFFF"')
@example("? ? ? a")
@example("1" * 5000)
def test_no_text_crashes_the_reader(text: str) -> None:
    for kind in FORMATS:
        assert _all_problems(text, kind)


def test_line_breaks_of_other_scripts_survive_yaml() -> None:
    text = "one\x85two\u2028three\u2029four\nfive\r\nsix"
    definition = WorkflowDefinition(
        name="w",
        steps=(TaskStep(id="a", type="t"),),
        description=text,
        input_schema={text: text},
    )
    assert parse_definition(format_definition(definition, "yaml"), "yaml") == definition


def test_yaml_reads_as_the_definition_it_spells() -> None:
    assert parse_definition(REVIEW, "yaml") == WorkflowDefinition(
        name="code-review",
        steps=(
            TaskStep(id="fetch", type="fetch-diff", retry=Retry(max_attempts=5)),
            AgentLoopStep(
                id="review",
                type="llm-review",
                after=("fetch",),
                max_iterations=10,
                loop_delay_s=0.5,
            ),
        ),
    )


def test_yaml_for_people_has_no_defaults_and_keeps_the_order() -> None:
    text = format_definition(parse_definition(REVIEW, "yaml"), "yaml")
    assert text == (
        "name: code-review\nsteps:\n"
        "- kind: task\n  id: fetch\n  type: fetch-diff\n  retry:\n    max_attempts: 5\n"
        "- kind: agent_loop\n  id: review\n  after:\n  - fetch\n  type: llm-review\n"
        "  max_iterations: 10\n  loop_delay_s: 0.5\n"
    )


# -------------------------------------------------------------------- strictness


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        (f"{REVIEW}name: again", "name", "written twice"),
        (REVIEW.replace("id: review", "id: review\n    id: x"), "steps[1].id", "written twice"),
        (REVIEW.replace("max_attempts: 5", "max_attempts: 5, max_attempts: 6"), "", "twice"),
        (f"{REVIEW}---\nname: b", "line 10, column 1", "a second document"),
        (REVIEW.replace("10", "!!int 10"), "steps[1].max_iterations", "tag"),
        (f"!!python/object:os.system\n{REVIEW}", "definition", "tags name classes"),
        (REVIEW.replace("name: code", "name: ! code"), "name", "tag"),
        (REVIEW.replace("id: fetch", "<<: {id: fetch}"), "steps[0]", "no merge keys"),
        (REVIEW.replace("0.5", ".inf"), "steps[1].loop_delay_s", "not a number JSON has"),
        (REVIEW.replace("10", "ten"), "steps[1].max_iterations", "expected a whole number"),
        (REVIEW.replace("10", "'10'"), "steps[1].max_iterations", "expected a whole number"),
        (REVIEW.replace("0.5", "1:30"), "steps[1].loop_delay_s", "expected a number"),
        (REVIEW.replace("id: fetch", "id: 5"), "steps[0].id", "Put it in quotes"),
        (REVIEW.replace("id: fetch", 'id: "\\ud800"'), "steps[0].id", "half of a character"),
        (REVIEW.replace("[fetch]", "*fetch"), "steps[1].after", "stands for nothing"),
        (REVIEW.replace("[fetch]", "&f [*f]"), "steps[1].after[0]", "or for itself"),
        (REVIEW.replace("name:", "? [name]\n:"), "definition", "a key must be a word"),
        ("", "definition", "it is empty"),
        ("# only a comment", "definition", "it is empty"),
        ("a: [", "line 1, column 5", "it is not YAML"),
        ("a: \x07", "definition", "it is not YAML"),
        ("[" * 100 + "]" * 100, "", "nested deeper than 64"),
    ],
)
def test_yaml_that_a_lenient_reader_would_accept_is_refused_at_its_place(
    text: str, path: str, why: str
) -> None:
    problems = _problems(text)
    place = path or next(iter(problems))
    assert why in problems[place]


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        ('{"name": "a", "name": "b", "steps": []}', "name", "written twice"),
        ('{"name": NaN}', "name", "not a number JSON has"),
        ('{"name": 1e999}', "name", "not a number JSON has"),
        ('{"name": "\\ud800"}', "name", "half of a character"),
        ('{"\\ud800": 1}', "'\\ud800'", "half of a character"),
        ("{", "line 1, column 2", "it is not JSON"),
        ("{} {}", "line 1, column 4", "it is not JSON"),
        ("", "line 1, column 1", "it is not JSON"),
        ("[" * 100_000, "definition", "nested too deep"),
        ("1" * 5000, "definition", "it is not JSON"),
        ("[]", "definition", "expected the fields of a workflow"),
    ],
)
def test_json_that_a_lenient_reader_would_accept_is_refused_at_its_place(
    text: str, path: str, why: str
) -> None:
    assert why in _problems(text, "json")[path]


def test_words_mean_what_they_mean_in_json() -> None:
    text = "name: on\nsteps: [{kind: task, id: no, type: yes, timeout_s: 1e3}]"
    assert parse_definition(text, "yaml") == WorkflowDefinition(
        name="on", steps=(TaskStep(id="no", type="yes", timeout_s=1000.0),)
    )


def test_an_alias_stands_for_its_value() -> None:
    text = REVIEW.replace("{max_attempts: 5}", "&often {max_attempts: 5}") + "    retry: *often\n"
    fetch, review = parse_definition(text, "yaml").steps
    assert isinstance(fetch, TaskStep)
    assert isinstance(review, AgentLoopStep)
    assert fetch.retry == review.retry == Retry(max_attempts=5)


def test_a_few_lines_of_aliases_cannot_become_a_billion_values() -> None:
    lines = ["x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "once its aliases are followed" in _problems("\n".join(lines))["definition"]


def test_aliases_cannot_nest_deeper_than_a_text_may() -> None:
    lines = ["x0: &x0 [1]"] + [f"x{i}: &x{i} [*x{i - 1}]" for i in range(1, 70)]
    assert "nested deeper than 64" in next(iter(_problems("\n".join(lines)).values()))


def test_all_problems_of_a_text_are_listed_at_once() -> None:
    text = "name: a b\nname: c\nstep: []\nsteps: [{kind: task, id: a, after: [b]}]\ntimeout_s: -1"
    assert list(_problems(text)) == [
        "name",
        "step",
        "steps[0].after[0]",
        "steps[0].type",
        "timeout_s",
    ]


# -------------------------------------------------------------------- files


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".json", ".YAML"])
def test_a_file_is_read_by_the_end_of_its_name(tmp_path: Path, suffix: str) -> None:
    definition = parse_definition(REVIEW, "yaml")
    kind: Format = "json" if suffix == ".json" else "yaml"
    path = tmp_path / f"review{suffix}"
    # Editors on Windows put a byte order mark in front.
    path.write_text("\ufeff" + format_definition(definition, kind), encoding="utf-8")
    assert load_definition(path) == definition
    assert load_definition(str(path)) == definition


def test_the_workflow_of_the_readme_is_the_same_in_python_and_in_yaml() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.split("## A workflow, in full")[1]
    written = re.search(r"```python\n(.*?)```.*?```yaml\n(.*?)```", section, re.DOTALL)
    assert written
    names: dict[str, Any] = {}
    exec(written[1], names)
    assert parse_definition(written[2], "yaml") == names["workflow"].build()


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        ("review.toml", b"", "does not end in .yaml, .yml or .json"),
        ("review.yaml", b"name: \xff", "it is not UTF-8"),
        ("review.yaml", b"#" * (DEFINITION_BYTES_MAX + 1), "it is longer than"),
    ],
)
def test_a_file_that_cannot_be_a_definition_is_named(
    tmp_path: Path, name: str, raw: bytes, why: str
) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(InvalidDefinition, match=why) as caught:
        load_definition(path)
    assert caught.value.workflow == name


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_definition(tmp_path / "gone.yaml")
