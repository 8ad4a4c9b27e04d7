"""The settings of a namespace that every process must agree on: so far, its partitions.

They are stored once, when the first engine sets the namespace up, and read by all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnsuitable
from treadle.sdk.settings import Settings
from treadle.sdk.stored import read
from treadle.sdk.subjects import DEFAULT_NAMESPACE, Subjects

PARTITIONS_MAX = 256
"""More would only multiply consumers: an engine process saturates a core long before."""


class NamespaceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored about a namespace."""

    partitions: int = 1


NAMESPACE_POLL_S = 0.5
"""Between two looks for a namespace that no engine has set up yet."""

_decoder = msgspec.json.Decoder(NamespaceRecord)


async def find_namespace(js: JetStream, settings: Settings) -> Subjects | None:
    """Return the subjects of an existing namespace, or None if none was set up."""
    subjects = Subjects(settings.namespace)
    try:
        stored = await js.last(subjects.workflows_stream, subjects.settings())
    except ServerUnsuitable:
        return None  # The stream does not exist yet.
    if stored is None:
        return None
    record = read(_decoder, stored)
    return Subjects(settings.namespace, record.partitions)


async def awaited_namespace(
    js: JetStream, settings: Settings, stopping: asyncio.Event, tell: Callable[[], None]
) -> Subjects | None:
    """Return the subjects of the namespace once an engine has set it up; None if it stops first.

    ``tell`` is called once, if there is something to wait for.
    """
    is_told = False
    while not stopping.is_set():
        subjects = await find_namespace(js, settings)
        if subjects is not None:
            return subjects
        if not is_told:
            is_told = True
            tell()
        try:
            async with asyncio.timeout(NAMESPACE_POLL_S):
                await stopping.wait()
        except TimeoutError:
            pass
    return None


async def open_namespace(js: JetStream, settings: Settings) -> Subjects:
    """Return the subjects of the namespace; raise ``ServerUnsuitable`` if it is not set up."""
    subjects = await find_namespace(js, settings)
    if subjects is None:
        is_default = settings.namespace == DEFAULT_NAMESPACE
        remedy = (
            "`treadle engine`, or everything at once: `treadle dev app.py`"
            if is_default
            else f"`treadle engine --namespace {settings.namespace}`"
        )
        raise ServerUnsuitable(
            f"namespace {settings.namespace!r} is not set up on this server: no engine has run "
            f"here yet. Start one: {remedy}."
        )
    return subjects
