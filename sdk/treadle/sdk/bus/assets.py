"""Streams and consumers: created, or accepted as they are if they are what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from treadle.sdk.bus import acks
from treadle.sdk.bus.acks import ApiError
from treadle.sdk.bus.retrying import Backoff
from treadle.sdk.bus.wire import Unknown
from treadle.sdk.errors import ServerUnsuitable, clause

if TYPE_CHECKING:
    from treadle.sdk.bus.jetstream import JetStream

_OPERATORS = frozenset({"num_replicas", "placement", "description", "metadata", "compression"})
"""What an operator may have changed for good reasons; an existing stream keeps it."""


async def ensure_stream(
    js: JetStream, config: Mapping[str, Any], initial: Mapping[str, Any], budget_s: float
) -> None:
    """Create a stream, or accept the one that exists if it is configured the same.

    What is ``initial`` is given to a new one, and may be anything in one that exists.
    """
    name = config["name"]
    backoff = Backoff(f"stream {name!r}", budget_s, verb="created")
    while True:
        try:
            await js.api(f"STREAM.CREATE.{name}", {**initial, **config})
            return
        except (Unknown, ApiError) as exc:
            if isinstance(exc, ApiError) and exc.err_code == acks.STREAM_DIFFERS:
                if await _accept_stream(js, name, config, backoff):
                    return
            elif isinstance(exc, ApiError) and not exc.transient:
                raise _cannot_create(f"stream {name!r}", exc) from exc
            else:
                await backoff.wait(exc)


async def _accept_stream(
    js: JetStream, name: str, config: Mapping[str, Any], backoff: Backoff
) -> bool:
    try:
        existing = (await js.api(f"STREAM.INFO.{name}"))["config"]
    except (Unknown, ApiError) as exc:
        await backoff.wait(exc)
        return False
    wrong = {key for key in differences(config, existing) if key not in _OPERATORS}
    if wrong:
        raise ServerUnsuitable(
            f"stream {name!r} exists, but is configured otherwise: "
            f"{_listed(config, existing, wrong)}. It was made by something else, or by another "
            f"version. Choose another TREADLE_NAMESPACE, or edit the stream (`nats stream edit`)."
        )
    return True


async def edit_stream(
    js: JetStream, name: str, changes: Mapping[str, Any], budget_s: float
) -> None:
    """Give an existing stream some settings; nothing is written if it has them."""
    backoff = Backoff(f"stream {name!r}", budget_s, verb="changed")
    while True:
        try:
            existing: dict[str, Any] = (await js.api(f"STREAM.INFO.{name}"))["config"]
            if differences(changes, existing):
                await js.api(f"STREAM.UPDATE.{name}", {**existing, **changes})
            return
        except (Unknown, ApiError) as exc:
            await backoff.wait(exc)


async def ensure_consumer(
    js: JetStream, stream: str, name: str, config: Mapping[str, Any], budget_s: float
) -> None:
    """Create a durable consumer, or bring the one that exists to this configuration."""
    asked = {"durable_name": name, **config}
    tail = f"CONSUMER.CREATE.{stream}.{name}"
    if "filter_subject" in asked:
        tail += f".{asked['filter_subject']}"
    backoff = Backoff(f"consumer {name!r} of stream {stream!r}", budget_s, verb="created")
    action = "create"
    while True:
        try:
            await js.api(tail, {"stream_name": stream, "config": asked, "action": action})
            return
        except (Unknown, ApiError) as exc:
            if isinstance(exc, Unknown) or exc.transient:
                await backoff.wait(exc)
            elif exc.err_code in acks.CONSUMER_DIFFERS and action == "create":
                action = "update"
            elif exc.err_code == acks.CONSUMER_NOT_FOUND and action == "update":
                action = "create"
            else:
                raise _cannot_create(f"consumer {name!r} of stream {stream!r}", exc) from exc


def differences(asked: Mapping[str, Any], existing: Mapping[str, Any]) -> list[str]:
    """Return the keys of ``asked`` whose value in ``existing`` is another.

    What the server leaves out is the zero value of its kind.
    """
    return [key for key, value in asked.items() if existing.get(key, type(value)()) != value]


def _listed(asked: Mapping[str, Any], existing: Mapping[str, Any], keys: set[str]) -> str:
    return ", ".join(f"{key} is {existing.get(key)!r}, not {asked[key]!r}" for key in sorted(keys))


def _cannot_create(what: str, exc: ApiError) -> ServerUnsuitable:
    if exc.err_code in acks.NO_JETSTREAM:
        return ServerUnsuitable(
            f"{what} cannot be created: {clause(exc.description)}. Start nats-server with "
            f"`-js -sd DIRECTORY`, or enable JetStream in its configuration."
        )
    if exc.err_code == acks.STREAM_NOT_FOUND:
        return ServerUnsuitable(
            f"{what} cannot be created: the stream does not exist, so the namespace is not set up "
            f"on this server. Start an engine once (`treadle engine`)."
        )
    return ServerUnsuitable(
        f"{what} cannot be created: the server answered {exc.description!r} (code {exc.code}, "
        f"{exc.err_code}). Check the server's version and its streams with `treadle doctor`."
    )
