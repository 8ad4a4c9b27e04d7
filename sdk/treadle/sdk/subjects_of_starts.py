"""The part of ``subjects.py`` that is about collected starts.

<ns>_COLLECT     <ns>.col.<workflow>.<key>.i.<id>           starts that become a run together
                 <ns>.col.<workflow>.<key>.n.<nonce>        the same of those without an id
KV_<ns>_windows  $KV.<ns>_windows.<workflow>.<key>          how far they have become runs
<ns>_TIMERS      <ns>.tmr.collect.<workflow>.<key> -> <ns>.fire.collect.<workflow>.<key>
"""

from __future__ import annotations

from typing import NamedTuple


class StartsOf(NamedTuple):
    """The starts of a workflow that are collected together, by the digest of their key."""

    workflow: str
    digest: str


class CollectSubjects:
    """All names about collected starts of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.collect_stream = f"{namespace}_COLLECT"
        self.windows_bucket = f"{namespace}_windows"
        self.windows_stream = f"KV_{self.windows_bucket}"
        self.all_collected = f"{namespace}.col.>"
        self.all_windows = f"$KV.{self.windows_bucket}.>"
        self.all_collect_timers = f"{namespace}.tmr.collect.*.*"
        self.all_collect_firings = f"{namespace}.fire.collect.>"

    def collected(self, starts: StartsOf, start_id: str, nonce: str) -> str:
        """A start that is collected; one without an id has a nonce in its place."""
        last = f"i.{start_id}" if start_id else f"n.{nonce}"
        return f"{self.namespace}.col.{starts.workflow}.{starts.digest}.{last}"

    def collected_of_id(self, workflow: str, start_id: str) -> str:
        """The start of an id, whatever its key."""
        return f"{self.namespace}.col.{workflow}.*.i.{start_id}"

    def collected_of_key(self, starts: StartsOf) -> str:
        return f"{self.namespace}.col.{starts.workflow}.{starts.digest}.*.*"

    def collected_without_id(self, starts: StartsOf) -> str:
        return f"{self.namespace}.col.{starts.workflow}.{starts.digest}.n.*"

    def window(self, starts: StartsOf) -> str:
        """Key of the record of how far the starts of a key have become runs."""
        return f"$KV.{self.windows_bucket}.{starts.workflow}.{starts.digest}"

    def collect_timer(self, starts: StartsOf) -> str:
        """Schedule of a key: one token longer than those of a run of this name."""
        return f"{self.namespace}.tmr.collect.{starts.workflow}.{starts.digest}"

    def collect_fired(self, starts: StartsOf) -> str:
        return f"{self.namespace}.fire.collect.{starts.workflow}.{starts.digest}"

    def parse_starts(self, subject: str) -> StartsOf:
        """Return whose subject this is: a start's, a timer's, a firing's or a record's."""
        parts = subject.split(".")
        at = {"$KV": 2, self.namespace: 2 if parts[1] == "col" else 3}[parts[0]]
        return StartsOf(parts[at], parts[at + 1])

    def collect_consumer(self) -> str:
        """The engines' shared consumer of collected starts, and of their timers."""
        return "collect"
