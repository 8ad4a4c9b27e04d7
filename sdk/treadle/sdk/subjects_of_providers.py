"""The part of ``subjects.py`` that is about the budgets of models' providers.

KV_<ns>_limits  $KV.<ns>_limits.p.<name>                                what is left of it
                $KV.<ns>_limits.q.<name>.<line>.<domain>.<run>.<step>   who waits for it
"""

from __future__ import annotations


class ProviderSubjects:
    """All names about providers of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.limits_bucket = f"{namespace}_limits"
        self.all_providers = f"$KV.{self.limits_bucket}.p.*"

    def provider(self, key: str) -> str:
        return f"$KV.{self.limits_bucket}.p.{key}"

    def parse_provider(self, subject: str) -> str:
        """Return the key of a record."""
        return subject.rsplit(".", 1)[1]

    def provider_waiter(self, key: str, line: str, run: str, step: str, domain: str) -> str:
        return f"$KV.{self.limits_bucket}.q.{key}.{line}.{domain}.{run}.{step}"

    def provider_waiters(self, key: str, line: str = "*") -> str:
        return f"$KV.{self.limits_bucket}.q.{key}.{line}.>"
