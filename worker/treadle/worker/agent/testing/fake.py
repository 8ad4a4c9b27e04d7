"""``FakeAnthropic``: the Messages API on this machine, scripted, strict, and watched."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from treadle.worker.agent.testing.journal import RecordedRequest
from treadle.worker.agent.testing.rules import Limits
from treadle.worker.agent.testing.script import Responder, Script, Turn
from treadle.worker.agent.testing.seal import Seal
from treadle.worker.agent.testing.server import LoopbackServer
from treadle.worker.agent.testing.service import (
    COUNT_TOKENS,
    MESSAGES,
    BeforeResponse,
    Hooks,
    OnRequest,
    Service,
)
from treadle.worker.agent.testing.usage import PromptCache

WAIT_S = 10.0
"""How long to wait for something before a test is told that it did not happen."""


class FakeAnthropic:
    """A server that answers Messages API requests from a script, and refuses what the API would.

    Use it with ``with`` or ``async with``::

        with FakeAnthropic([turn(text("hello"))]) as fake:
            client = anthropic.Anthropic(base_url=fake.base_url, api_key="test")

    ``turns`` are used in order, or made by a function of the request (it runs on the server's
    loop, so it must not wait). ``on_request`` is called when a request has arrived, before it is
    looked at, and ``before_response`` when its turn is chosen, before the first byte is sent:
    both run in threads and may wait, or end a process.

    At exit an ``AssertionError`` says that the script ran out (unless ``allow_exhausted``) or
    that a hook failed; an exception of the body is never hidden by it.
    """

    def __init__(
        self,
        turns: Iterable[Turn] | Responder = (),
        *,
        context_window: int = 200_000,
        on_request: OnRequest | None = None,
        before_response: BeforeResponse | None = None,
        api_key: str | None = None,
        latency_s: float = 0.0,
        cache_tokens_min: int = 0,
        merge_roles: bool = True,
        prefill: bool = True,
        signing_key: bytes | None = None,
        allow_exhausted: bool = False,
    ) -> None:
        """Make a fake; it listens once it is entered or started.

        ``api_key``           the only key that is let in; any key without it
        ``latency_s``         a pause before each answer, for people who watch
        ``cache_tokens_min``  the shortest prefix that is cached; 1024 or more in the real API
        ``merge_roles``       false: consecutive messages of one role are refused
        ``prefill``           false: a last message of the assistant is refused
        ``signing_key``       shared by fakes that accept each other's thinking
        """
        self._script = Script(turns)
        self._cache = PromptCache(cache_tokens_min)
        self._allow_exhausted = allow_exhausted
        self._api_key = api_key
        self._service = Service(
            self._script,
            limits=Limits(context_window, merge_roles=merge_roles, prefill=prefill),
            seal=Seal(signing_key or secrets.token_bytes(32)),
            cache=self._cache,
            hooks=Hooks(on_request, before_response),
            api_key=api_key,
            latency_s=latency_s,
        )
        self._server = LoopbackServer(self._service.serve)
        self._journal = self._service.journals[MESSAGES]

    @property
    def base_url(self) -> str:
        """What the client's ``base_url`` has to be."""
        return f"http://127.0.0.1:{self._server.port}"

    @property
    def env(self) -> dict[str, str]:
        """Variables by which a process finds this server through the SDK."""
        return {
            "ANTHROPIC_BASE_URL": self.base_url,
            "ANTHROPIC_API_KEY": self._api_key or "fake",
        }

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests for a message so far, refused ones too."""
        return self._journal.requests

    @property
    def count(self) -> int:
        """How many requests for a message have come."""
        return len(self.requests)

    @property
    def token_counts(self) -> list[RecordedRequest]:
        """All requests to count tokens so far."""
        return self._service.journals[COUNT_TOKENS].requests

    @property
    def remaining(self) -> int:
        """How many turns are left."""
        return self._script.remaining

    @property
    def failures(self) -> list[Exception]:
        """What hooks and the function that gives turns have raised."""
        return list(self._service.failures)

    def extend(self, *turns: Turn) -> None:
        """Add turns to the end of the script."""
        self._script.extend(turns)

    def forget_cache(self) -> None:
        """Let all cached prefixes expire."""
        self._cache.clear()

    def wait_arrived(self, n: int, timeout_s: float = WAIT_S) -> RecordedRequest:
        """Block until the ``n``-th request (from 1) has come, and return it.

        This and the other waits raise ``TimeoutError``; from a coroutine call them with
        ``asyncio.to_thread``.
        """
        return self._journal.wait("did not come", n - 1, lambda _: True, timeout_s)

    def wait_answered(self, n: int, timeout_s: float = WAIT_S) -> RecordedRequest:
        """Block until the ``n``-th request has been answered whole."""
        return self._journal.wait(
            "was not answered", n - 1, lambda request: request.answered_at is not None, timeout_s
        )

    def wait_client_closed(self, n: int, timeout_s: float = WAIT_S) -> RecordedRequest:
        """Block until the client gave up the ``n``-th request by closing its socket."""
        return self._journal.wait(
            "was not given up",
            n - 1,
            lambda request: request.client_closed_at is not None,
            timeout_s,
        )

    def start(self) -> Self:
        """Start to listen."""
        self._server.start()
        return self

    def stop(self) -> None:
        """Stop, whatever is going on, and check nothing."""
        self._server.stop()

    def check(self) -> None:
        """Raise ``AssertionError`` if the script ran out or a hook failed."""
        if self._service.failures:
            first = self._service.failures[0]
            raise AssertionError(f"a hook or the script's function failed: {first!r}") from first
        if self._script.is_exhausted and not self._allow_exhausted:
            raise AssertionError(
                f"script_exhausted: {self.count} requests came, more than the script has turns. "
                "Add turns, or find out why the client asks again."
            )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if exc is None:
            self.check()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)
        if exc is None:
            self.check()
