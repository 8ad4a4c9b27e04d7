"""What is stored of a trigger: one value by name, changed by compare-and-set only.

Clients write what is asked for, engines how far it has come; each leaves the part of the other
as it is. Data only: names and ids are in ``naming.py``, times in ``times.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from treadle.sdk.messages import NO_RAW, MetadataValue
from treadle.sdk.payload import PAYLOAD_BYTES_MAX

CatchUp = Literal["skip", "last", "all"]
"""What becomes of firings that nobody was there to handle: none, the newest, or each of them."""


class Cron(msgspec.Struct, frozen=True, tag="cron", tag_field="kind"):
    """Fires at times: five fields or ``@daily`` and the like, read in a time zone."""

    expression: str
    zone: str = "UTC"
    """IANA name, such as ``Europe/Berlin``."""
    catch_up: CatchUp = "skip"


class Subject(msgspec.Struct, frozen=True, tag="subject", tag_field="kind", omit_defaults=True):
    """Fires at each message on a NATS subject; the message, as JSON, is the input of the run."""

    subject: str
    """It may have wildcards: ``orders.*``, ``orders.>``."""
    max_in_flight: int = 0
    """Runs of it that are under way at once; further messages wait in their stream. 0 is any."""


Scheme = Literal["standard", "github", "stripe", "hmac"]
"""How a webhook is signed: see ``signatures.py``."""


class Webhook(
    msgspec.Struct, frozen=True, tag="webhook", tag_field="kind", omit_defaults=True, kw_only=True
):
    """Fires at each delivery to ``POST /hooks/<name>`` of a gateway; its JSON body is the input.

    The secret itself is not here: ``secret`` says where the gateway finds it.
    """

    secret: str
    """``env:NAME`` or ``file:/PATH``; of several with white space between, each is tried."""
    scheme: Scheme = "standard"
    signature_header: str = ""
    """Of the scheme ``hmac``: header with the signature; ``x-signature`` by default."""
    timestamp_header: str = ""
    """Of the scheme ``hmac``: header with the time, Unix seconds; ``x-timestamp`` by default."""
    id_header: str = ""
    """Of the scheme ``hmac``: header with the delivery's id; ``idempotency-key`` by default."""
    tolerance_s: int = 300
    """How far the time of a delivery may be from the gateway's clock."""
    body_bytes_max: int = PAYLOAD_BYTES_MAX
    headers: tuple[str, ...] = ()
    """Headers that the runs are given: the input is ``{"headers": {...}, "body": ...}`` then."""


class Http(
    msgspec.Struct, frozen=True, tag="http", tag_field="kind", omit_defaults=True, kw_only=True
):
    """Fires at each request to ``POST /api/<path>`` of a gateway, and answers it.

    The response is that of the run's respond step, or its result.
    """

    path: str = ""
    """Empty is the trigger's name."""
    timeout_s: float = 30.0
    """How long a request waits for the response; after that it is told where to ask."""
    secret: str = ""
    """Where the gateway finds the bearer token of requests, as in a webhook; empty is none."""
    cancels: bool = False
    """Cancel the run if the client goes away before the response."""
    body_bytes_max: int = PAYLOAD_BYTES_MAX
    headers: tuple[str, ...] = ()
    """Headers that the runs are given: the input is ``{"headers": {...}, "body": ...}`` then."""


On = Cron | Subject | Webhook | Http
"""What a trigger fires at: its kind."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the messages of a subject trigger are: a stream, and the trigger's consumer of it."""

    stream: str
    consumer: str
    first: int = 0
    """Sequence from which its messages count; 0 is all that the stream holds."""
    is_captured: bool = False
    """The stream was made for triggers, because none held the subject."""


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A trigger as it stands. Another kind of ``on`` is another kind of trigger."""

    on: On
    workflow: str
    version: str = ""
    """Content hash of the version that its runs take; empty is the newest one at the firing."""
    input: msgspec.Raw = NO_RAW
    metadata: Mapping[str, MetadataValue] = {}
    lane: str = ""
    paused: bool = False
    next_ms: int = 0
    """The firing that is waited for; 0 is the first one after this value was stored, or none of
    a paused one."""
    due: tuple[int, ...] = ()
    """Firings whose runs are to be requested now, the oldest first."""
    fired_ms: int = 0
    """The newest firing whose run was requested; 0 is none."""
    missed_from_ms: int = 0
    """Of the firings that were last left out, the oldest; 0 is none."""
    missed_to_ms: int = 0
    """Of these, the newest."""
    failed_ms: int = 0
    """The newest firing that could not start its run; 0 is none."""
    failure: str = ""
    """Why it could not."""
    source: Source | None = None
    """Of a subject trigger: where its messages are."""
    dropped: tuple[Source, ...] = ()
    """Sources it had before: engines remove what they have left, and then this."""
    deleted: bool = False
    """It is to go: engines remove what it has left, and then the value."""
    write: str = ""
    """Nonce of the write: recognises a compare-and-set whose acknowledgement was lost."""


class TriggerDue(msgspec.Struct, frozen=True, tag="trigger.due", tag_field="event"):
    """A trigger's schedule fired. It is a hint: what is due is read from the trigger."""

    trigger: str
    due_ms: int
