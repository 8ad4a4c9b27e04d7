"""The run journal: durable working memory the agent keeps deliberately, by three tools.

Unlike the conversation it is edited, and it survives compaction whole. The model sees a digest
in the system prompt, frozen while the conversation's prefix stands so that caches hold, and the
full text ahead of the conversation whenever that prefix is made anew.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from treadle.worker.agent.core.spec import ToolSpec

FIELDS = ("objective", "current_state", "handoff_next_action")
LISTS = ("verified_findings", "decisions", "artifacts", "open_questions", "blockers")
GET, UPDATE, APPEND = "get_run_journal", "update_run_journal", "append_run_journal_entry"
NAMES = frozenset({GET, UPDATE, APPEND})

DIGEST_CHARS_MAX = 500
ENTRY_CHARS_MAX = 2_000
ENTRIES_MAX = 100
"""Per list; the oldest gives way."""


class RunJournal(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the agent has written down."""

    objective: str = ""
    current_state: str = ""
    handoff_next_action: str = ""
    verified_findings: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when nothing is written down."""
        return self == RunJournal()

    def changed(self, field: str, value: str, *, append: bool) -> RunJournal:
        """Return the journal with a field set, or with an entry more in a list."""
        value = value[:ENTRY_CHARS_MAX]
        if not append:
            return msgspec.structs.replace(self, **{field: value})
        entries = cast("tuple[str, ...]", getattr(self, field))
        if value in entries:
            return self
        return msgspec.structs.replace(self, **{field: (*entries, value)[-ENTRIES_MAX:]})

    def digest(self) -> str:
        """Return the few lines that matter most, at most 500 characters; '' if empty."""
        lines = [
            ("Objective", self.objective),
            ("State", self.current_state),
            ("Blocker", self.blockers[0] if self.blockers else ""),
            ("Next", self.handoff_next_action),
            *(("Found", finding) for finding in reversed(self.verified_findings[-3:])),
        ]
        text = "\n".join(f"{label}: {_line(value)}" for label, value in lines if value)
        return text if len(text) <= DIGEST_CHARS_MAX else text[: DIGEST_CHARS_MAX - 1] + "…"

    def rendered(self) -> str:
        """Return the whole journal as Markdown; '' if empty."""
        parts = [
            f"## {_title(name)}\n{value}"
            for name in FIELDS
            if (value := cast("str", getattr(self, name)))
        ]
        for name in LISTS:
            entries = cast("tuple[str, ...]", getattr(self, name))
            if entries:
                listed = "\n".join(f"- {entry}" for entry in entries)
                parts.append(f"## {_title(name)}\n{listed}")
        return "\n\n".join(parts)


def tools() -> tuple[ToolSpec, ...]:
    """Return the three tools as the model sees them."""
    text = {"type": "string", "minLength": 1, "maxLength": ENTRY_CHARS_MAX}
    return (
        ToolSpec(
            name=GET,
            description="Read the run journal: what you have written down in this run.",
            input_schema={"type": "object", "properties": {}, "additionalProperties": False},
            idempotent=True,
        ),
        ToolSpec(
            name=UPDATE,
            description=(
                "Set one or more of the run journal's texts. Keep it true: it is what remains "
                "when older messages are summarised."
            ),
            input_schema={
                "type": "object",
                "properties": dict.fromkeys(FIELDS, text),
                "additionalProperties": False,
                "minProperties": 1,
            },
            idempotent=True,
        ),
        ToolSpec(
            name=APPEND,
            description="Add one entry to a list of the run journal.",
            input_schema={
                "type": "object",
                "properties": {
                    "section": {"type": "string", "enum": list(LISTS)},
                    "entry": text,
                },
                "required": ["section", "entry"],
                "additionalProperties": False,
            },
            idempotent=True,
        ),
    )


def changes(name: str, arguments: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """Return what a call of a journal tool changes, as (field, value, append).

    Raises ``ValueError``, in words for the model, if the arguments do not fit.
    """
    if name == UPDATE:
        wrong = sorted(set(arguments) - set(FIELDS))
        if wrong or not arguments:
            raise ValueError(
                f"update_run_journal takes one or more of {', '.join(FIELDS)}"
                + (f", not {', '.join(wrong)}" if wrong else "")
            )
        return [(field, _text(field, value), False) for field, value in arguments.items()]
    if name == APPEND:
        section = arguments.get("section")
        if section not in LISTS or set(arguments) != {"section", "entry"}:
            raise ValueError(
                f"append_run_journal_entry takes section, one of {', '.join(LISTS)}, and entry"
            )
        return [(section, _text("entry", arguments["entry"]), True)]
    return []


def _text(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{field} must be a text that is not empty")
    return value


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 160 else flat[:159] + "…"


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()
