"""Every stream, bucket, subject, consumer and message id, built here and in two files more:
``subjects_of_starts.py`` has those of collected starts, ``subjects_of_providers.py`` of budgets.

    <ns>_EVENTS   <ns>.evt.<domain>.<partition>.<run>          inputs: the run's history
                  <ns>.evt.<domain>:<step>.<partition>.<run>     messages to a step, part of it
                  <ns>.evt.<domain>@<lane>.<partition>.<run>     requests of runs with a lane
    KV_<ns>_steps $KV.<ns>_steps.<domain>.<run>.<step>.t.<type>  register of a step
                                   of a map: <step>=<n> for its n-th chunk
                  $KV.<ns>_steps.<domain>.<run>.<step>.c         its checkpoint
                  $KV.<ns>_steps.<domain>.<run>.<step>.j.<n>     a record of its journal
    KV_<ns>_runs  $KV.<ns>_runs.<run>                          run documents
    KV_<ns>_lanes $KV.<ns>_lanes.<domain>.<lane>               how far each lane has come
    KV_<ns>_limits  $KV.<ns>_limits.s.<limit>                  who holds the slots of a limit
                    $KV.<ns>_limits.w.<limit>.<line>.<domain>.<run>.<step>.<token>  who waits
                    $KV.<ns>_limits.r.<limit>                  when a rate lets the next begin
    <ns>_TIMERS   <ns>.tmr.<run>.<id> -> <ns>.fire.<partition>.<run>.<id>
                  <ns>.tmr.trigger.<name>.next -> <ns>.fire.trigger.<name>
    KV_<ns>_workflows  $KV.<ns>_workflows._trigger.<name>.t      triggers
                       $KV.<ns>_workflows._paused.<run>.p       which runs are paused: a hint
    <ns>_CAPTURE_<digest>  a subject of users that triggers start runs for, and no stream held
    <ns>_STREAM   <ns>.out.<domain>.<run>.<step>                what steps say while they work
    <ns>_EXT      <ns>.ext.<event name>.<id>                   events published to the namespace
    KV_<ns>_waiters  $KV.<ns>_waiters.<event name>.<path>.<value>.<run>.<step>   who waits for them
                  $KV.<ns>_waiters.<event name>._path.<path>     by which of their values
    <ns>_DEAD     <ns>.dead.<workflow>.<run>.<what>[.done]
    core NATS     <ns>.beat.<incarnation>, <ns>.ctl.<run>, <ns>.index

Nothing else may spell a subject. Ids are validated at the edge (``ids.py``): no dot, no wildcard.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import NamedTuple

from treadle.sdk.subjects_of_providers import ProviderSubjects
from treadle.sdk.subjects_of_starts import CollectSubjects, StartsOf

MAIN_DOMAIN = "main"
DEFAULT_NAMESPACE = "treadle"


@dataclass(frozen=True, slots=True)
class EventAddress:
    """The parts of an event's or a timer's subject."""

    domain: str
    partition: int
    run: str
    step: str = ""
    """Of a message's subject: the step it is for."""
    lane: str = ""
    """Of the subject of a request with a lane: the lane's key."""


@dataclass(frozen=True, slots=True)
class RegisterAddress:
    """The parts of a register's subject."""

    domain: str
    run: str
    step: str
    type: str


class Place(NamedTuple):
    """Where a stored value is, as `nats kv` names it; no bucket for what is in a plain stream."""

    bucket: str
    key: str
    run: str
    """The run it belongs to; '' if to none."""


def place_of(subject: str) -> Place:
    """Return the bucket and key of a value's subject; the subject itself if it has none."""
    head, _, rest = subject.partition(".")
    if head != "$KV":
        return Place("", subject, "")
    bucket, _, key = rest.partition(".")
    parts = key.split(".")
    if bucket.endswith("_runs"):
        return Place(bucket, key, key if len(parts) == 1 else "")
    if bucket.endswith("_steps"):
        return Place(bucket, key, parts[1] if len(parts) > 2 else "")
    return Place(bucket, key, "")


class Subjects(ProviderSubjects, CollectSubjects):
    """All names of one namespace."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE, partitions: int = 1) -> None:
        CollectSubjects.__init__(self, namespace)
        ProviderSubjects.__init__(self, namespace)
        self.partitions = partitions
        ns = namespace
        self.events_stream = f"{ns}_EVENTS"
        self.timers_stream = f"{ns}_TIMERS"
        self.output_stream = f"{ns}_STREAM"
        self.dead_stream = f"{ns}_DEAD"
        self.external_stream = f"{ns}_EXT"
        self.waiters_bucket = f"{ns}_waiters"
        self.waiters_stream = f"KV_{self.waiters_bucket}"
        self.steps_bucket = f"{ns}_steps"
        self.runs_bucket = f"{ns}_runs"
        self.workflows_bucket = f"{ns}_workflows"
        self.workers_bucket = f"{ns}_workers"
        self.lanes_bucket = f"{ns}_lanes"
        self.steps_stream = f"KV_{self.steps_bucket}"
        self.runs_stream = f"KV_{self.runs_bucket}"
        self.workflows_stream = f"KV_{self.workflows_bucket}"
        self.workers_stream = f"KV_{self.workers_bucket}"
        self.lanes_stream = f"KV_{self.lanes_bucket}"
        self.limits_stream = f"KV_{self.limits_bucket}"
        self.own_streams = frozenset(
            (
                *(self.events_stream, self.timers_stream, self.output_stream, self.dead_stream),
                *(self.steps_stream, self.runs_stream, self.workflows_stream, self.windows_stream),
                *(self.workers_stream, self.lanes_stream, self.limits_stream, self.collect_stream),
            )
        )
        self.all_events = f"{ns}.evt.>"
        self.all_timers = f"{ns}.tmr.>"
        self.all_fired = f"{ns}.fire.>"
        self.all_output = f"{ns}.out.>"
        self.all_dead = f"{ns}.dead.>"
        """Dead letters, and what was done about them."""
        self.all_letters = f"{ns}.dead.*.*.*"
        self.all_external = f"{ns}.ext.>"
        self.all_waiters = f"$KV.{self.waiters_bucket}.>"
        self.all_beats = f"{ns}.beat.*"
        self.all_cancels = f"{ns}.ctl.*"
        self.index = f"{ns}.index"
        """Where the index of the runs is asked."""
        self.all_steps = f"$KV.{self.steps_bucket}.>"
        self.all_runs = f"$KV.{self.runs_bucket}.>"
        self.all_workflows = f"$KV.{self.workflows_bucket}.>"
        self.all_triggers = f"$KV.{self.workflows_bucket}._trigger.*.t"
        self.all_pauses = f"$KV.{self.workflows_bucket}._paused.*.p"
        self.all_trigger_firings = f"{ns}.fire.trigger.*"
        self.all_workers = f"$KV.{self.workers_bucket}.>"
        self.all_lanes = f"$KV.{self.lanes_bucket}.>"
        self.all_limits = f"$KV.{self.limits_bucket}.>"
        self.all_slots = f"$KV.{self.limits_bucket}.s.*"
        self.all_slot_waiters = f"$KV.{self.limits_bucket}.w.>"
        self.all_rates = f"$KV.{self.limits_bucket}.r.*"

    # ---------------------------------------------------------------- events and timers

    def partition(self, run: str) -> int:
        """Return the partition of a run: crc32 of its id, modulo the partitions."""
        return zlib.crc32(run.encode()) % self.partitions

    def event(self, run: str, domain: str = MAIN_DOMAIN) -> str:
        return f"{self.namespace}.evt.{domain}.{self.partition(run)}.{run}"

    def messages(self, run: str, step: str, domain: str = MAIN_DOMAIN) -> str:
        """The messages to one step, and nothing else: ids hold no colon.

        They match every filter on the run's events, so its history has them in their order.
        """
        return f"{self.namespace}.evt.{domain}:{step}.{self.partition(run)}.{run}"

    def request(self, run: str, lane: str, domain: str = MAIN_DOMAIN) -> str:
        """The request of a run in a lane, given the lane's key: keys hold no at sign.

        It matches every filter on the run's events, and that on the lane's requests.
        """
        return f"{self.namespace}.evt.{domain}@{lane}.{self.partition(run)}.{run}"

    def requests_of_lane(self, lane: str, domain: str = MAIN_DOMAIN) -> str:
        return f"{self.namespace}.evt.{domain}@{lane}.*.*"

    def events_of_run(self, run: str) -> str:
        return f"{self.namespace}.evt.*.{self.partition(run)}.{run}"

    def events_of_partition(self, partition: int) -> str:
        return f"{self.namespace}.evt.*.{partition}.*"

    def fired_of_partition(self, partition: int) -> str:
        return f"{self.namespace}.fire.{partition}.*.*"

    def timer(self, run: str, timer_id: str) -> str:
        return f"{self.namespace}.tmr.{run}.{timer_id}"

    def fired_of_timer(self, subject: str) -> str:
        """Return where a timer with this subject fires; raise ``ValueError`` if it is none."""
        match subject[len(self.namespace) + 1 :].split("."):
            case ["tmr", run, timer_id]:
                return self.fired(run, timer_id)
            case ["tmr", "trigger", name, "next"]:
                return self.trigger_fired(name)
            case ["tmr", "collect", workflow, digest]:
                return self.collect_fired(StartsOf(workflow, digest))
            case _:
                raise ValueError(f"not a timer's subject: {subject!r}")

    def timers_of_run(self, run: str) -> str:
        return f"{self.namespace}.tmr.{run}.*"

    def fired(self, run: str, timer_id: str) -> str:
        return f"{self.namespace}.fire.{self.partition(run)}.{run}.{timer_id}"

    def fired_of_run(self, run: str) -> str:
        return f"{self.namespace}.fire.{self.partition(run)}.{run}.*"

    def parse_event(self, subject: str) -> EventAddress:
        """Split an event's or a fired timer's subject; raise ``ValueError`` if it is neither."""
        parts = subject[len(self.namespace) + 1 :].split(".")
        match parts:
            case ["evt", domain, partition, run]:
                domain, _, step = domain.partition(":")
                domain, _, lane = domain.partition("@")
                return EventAddress(domain, int(partition), run, step, lane)
            case ["fire", partition, run, _]:
                return EventAddress(MAIN_DOMAIN, int(partition), run)
            case _:
                raise ValueError(f"not an event subject: {subject!r}")

    # ---------------------------------------------------------------- registers, checkpoints

    def register(self, run: str, step: str, task_type: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.{step}.t.{task_type}"

    def checkpoint(self, run: str, step: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.{step}.c"

    def record(self, run: str, step: str, number: int, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.{step}.j.{number}"

    def records(self, run: str, step: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.{step}.j.*"

    def parse_record(self, subject: str) -> int:
        """Return the number in a record's subject; raise ``ValueError`` if it is none."""
        parts = subject.split(".")
        if len(parts) != 7 or parts[5] != "j":
            raise ValueError(f"not a record's subject: {subject!r}")
        return int(parts[6])

    def pair(self, run: str, step: str, domain: str = MAIN_DOMAIN) -> str:
        """The one filter under which all writers beside a register fence, itself included.

        R3 compares in-flight writes by this string, so it must be byte-identical everywhere.
        """
        return f"$KV.{self.steps_bucket}.{domain}.{run}.{step}.>"

    def steps_of_run(self, run: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.>"

    def registers_of_run(self, run: str, task_type: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.{run}.*.t.{task_type}"

    def registers_of_type(self, task_type: str, domain: str = MAIN_DOMAIN) -> str:
        return f"$KV.{self.steps_bucket}.{domain}.*.*.t.{task_type}"

    def parse_register(self, subject: str) -> RegisterAddress:
        """Split a register's subject; raise ``ValueError`` if it is none."""
        parts = subject.split(".")
        if len(parts) != 7 or parts[5] != "t":
            raise ValueError(f"not a register subject: {subject!r}")
        return RegisterAddress(parts[2], parts[3], parts[4], parts[6])

    # ---------------------------------------------------------------- output

    def output(self, run: str, step: str, domain: str = MAIN_DOMAIN) -> str:
        return f"{self.namespace}.out.{domain}.{run}.{step}"

    def output_of_run(self, run: str, step: str = "*") -> str:
        """What all steps of a run say, or one of them, whatever its domain."""
        return f"{self.namespace}.out.*.{run}.{step}"

    def parse_run_document(self, subject: str) -> str:
        """Return the key in the subject of a run document: the run, unless something else is."""
        return subject[len(self.all_runs) - 1 :]

    def parse_output(self, subject: str) -> str:
        """Return the step in an output's subject."""
        return subject[len(self.namespace) + 1 :].split(".")[3]

    # ---------------------------------------------------------------- other buckets

    def run_document(self, run: str) -> str:
        return f"$KV.{self.runs_bucket}.{run}"

    def lane(self, lane: str, domain: str = MAIN_DOMAIN) -> str:
        """Key of a lane's record, given the lane's key."""
        return f"$KV.{self.lanes_bucket}.{domain}.{lane}"

    def parse_lane(self, subject: str) -> tuple[str, str]:
        """Return the domain and the lane's key of a record's subject."""
        domain, lane = subject.split(".")[-2:]
        return domain, lane

    def slots(self, limit: str) -> str:
        return f"$KV.{self.limits_bucket}.s.{limit}"

    def slot_waiter(self, limit: str, line: str, register: RegisterAddress, token: int) -> str:
        place = f"{register.domain}.{register.run}.{register.step}.{token}"
        return f"$KV.{self.limits_bucket}.w.{limit}.{line}.{place}"

    def slot_waiters_of_line(self, limit: str, line: str) -> str:
        return f"$KV.{self.limits_bucket}.w.{limit}.{line}.>"

    def slot_waiters_of_limit(self, limit: str) -> str:
        return f"$KV.{self.limits_bucket}.w.{limit}.>"

    def rate(self, limit: str) -> str:
        return f"$KV.{self.limits_bucket}.r.{limit}"

    def parse_limit(self, subject: str) -> str:
        """Return the limit's key in the subject of any of these."""
        return subject.split(".")[3]

    def workflow_version(self, name: str, content_hash: str) -> str:
        return f"$KV.{self.workflows_bucket}.{name}.v.{content_hash}"

    def workflow_versions(self, name: str) -> str:
        return f"$KV.{self.workflows_bucket}.{name}.v.*"

    def workflow_latest(self, name: str) -> str:
        return f"$KV.{self.workflows_bucket}.{name}.latest"

    def all_workflow_latest(self) -> str:
        return f"$KV.{self.workflows_bucket}.*.latest"

    def worker(self, incarnation: str) -> str:
        return f"$KV.{self.workers_bucket}.{incarnation}"

    def settings(self) -> str:
        """Key of the namespace's settings (partitions), in the workflows bucket."""
        return f"$KV.{self.workflows_bucket}._namespace"

    def cursor(self, name: str) -> str:
        """Key of how far a reader of the log has come, in the workflows bucket."""
        return f"$KV.{self.workflows_bucket}._cursor.{name}"

    def trigger(self, name: str) -> str:
        """Key of a trigger, in the workflows bucket: one token longer than a workflow's newest."""
        return f"$KV.{self.workflows_bucket}._trigger.{name}.t"

    def pause(self, run: str) -> str:
        """Key that marks a paused run, in the workflows bucket: no version's hash is ``p``."""
        return f"$KV.{self.workflows_bucket}._paused.{run}.p"

    def parse_pause(self, subject: str) -> str:
        """Return the run in the subject of such a key."""
        return subject.split(".")[-2]

    def trigger_timer(self, name: str) -> str:
        """Schedule of a trigger: one token longer than those of a run that has its name."""
        return f"{self.namespace}.tmr.trigger.{name}.next"

    def trigger_fired(self, name: str) -> str:
        return f"{self.namespace}.fire.trigger.{name}"

    def capture_stream(self, digest: str) -> str:
        """Stream of a subject that triggers start runs for, given a digest of the subject."""
        return f"{self.namespace}_CAPTURE_{digest}"

    def source_consumer(self, name: str, nonce: str) -> str:
        """A trigger's consumer of the stream that holds its messages."""
        return f"{self.namespace}-{name}-{nonce}"

    def parse_trigger(self, subject: str) -> str:
        """Return the name in the subject of a trigger's key, or of its firing."""
        parts = subject.split(".")
        return parts[-2] if parts[-1] == "t" and parts[0] == "$KV" else parts[-1]

    def dead(self, workflow: str, run: str, what: str) -> str:
        """Where the letter of a run, a message or an event is: there is one of each."""
        return f"{self.namespace}.dead.{workflow or '_'}.{run}.{what}"

    def letters(self, workflow: str = "", run: str = "") -> str:
        """Letters of a workflow or a run, or all of them."""
        return f"{self.namespace}.dead.{workflow or '*'}.{run or '*'}.*"

    def is_letter(self, subject: str) -> bool:
        """True for a letter, false for what was done about one."""
        return len(subject.split(".")) == len(self.all_letters.split("."))

    def letter_mark(self, letter: str) -> str:
        """What was done about the letter on that subject."""
        return f"{letter}.done"

    def letter_marks(self, workflow: str = "", run: str = "") -> str:
        return f"{self.letters(workflow, run)}.done"

    @staticmethod
    def namespace_of_runs(stream: str) -> str:
        """Return the namespace whose run documents are in this stream; '' for any other stream."""
        is_runs = stream.startswith("KV_") and stream.endswith("_runs")
        return stream[len("KV_") : -len("_runs")] if is_runs else ""

    # ---------------------------------------------------------------- published events

    def external(self, name: str, event_id: str) -> str:
        """An event that is published to the namespace; its id is the last token."""
        return f"{self.namespace}.ext.{name}.{event_id}"

    def external_of_name(self, name: str) -> str:
        """Every event of that name, and of no longer one: an id is one token."""
        return f"{self.namespace}.ext.{name}.*"

    def parse_external(self, subject: str) -> tuple[str, str]:
        """Return name and id of a published event; raise ``ValueError`` if it has no name."""
        name, _, event_id = subject[len(self.namespace) + len(".ext.") :].rpartition(".")
        if not name:
            raise ValueError(f"not the subject of an event: {subject!r}")
        return name, event_id

    def waiter(self, event: str, path: str, value: str, run: str, step: str) -> str:
        """Key of a step that waits for an event with that value at that path; both are keys."""
        return f"$KV.{self.waiters_bucket}.{event}.{path}.{value}.{run}.{step}"

    def waiter_of_any(self, event: str, run: str, step: str) -> str:
        """Key of a step that waits for an event, and has to be asked about each."""
        return self.waiter(event, "_", "_", run, step)

    def waiters_of_value(self, event: str, path: str, value: str) -> str:
        return self.waiter(event, path, value, "*", "*")

    def waiters_of_any(self, event: str) -> str:
        return self.waiter(event, "_", "_", "*", "*")

    def waiters_of_step(self, event: str, run: str, step: str) -> str:
        return self.waiter(event, "*", "*", run, step)

    def indexed_path(self, event: str, path: str) -> str:
        """Key of a path by whose value steps wait for an event."""
        return f"$KV.{self.waiters_bucket}.{event}._path.{path}"

    def is_indexed_path(self, subject: str) -> bool:
        """True for the key of a path, false for that of a waiter."""
        return subject.split(".")[-2] == "_path"

    def indexed_paths(self, event: str) -> str:
        return self.indexed_path(event, "*")

    # ---------------------------------------------------------------- core NATS

    def beat(self, incarnation: str) -> str:
        return f"{self.namespace}.beat.{incarnation}"

    def cancel(self, run: str) -> str:
        return f"{self.namespace}.ctl.{run}"

    # ---------------------------------------------------------------- consumers, message ids

    def engine_consumer(self, partition: int) -> str:
        return f"engine-{partition}"

    def triggers_consumer(self) -> str:
        """The engines' shared consumer of triggers, in the streams of workflows and timers."""
        return "triggers"

    def correlator_consumer(self) -> str:
        """The engines' shared consumer of published events."""
        return "correlator"

    def worker_consumer(self, task_type: str, domain: str = MAIN_DOMAIN) -> str:
        return f"worker{SIGN}{domain}{SIGN}{task_type}"


SIGN = "="  # Legal in the key of a bucket and the name of a consumer, and in no id.


def chunk_id(step: str, number: int) -> str:
    """Return what stands for the step in the names of what belongs to one chunk of a map."""
    return f"{step}{SIGN}{number}"


def parse_chunk(name: str) -> tuple[str, int] | None:
    """Return a chunk's map and number; None for the name of a step."""
    step, sign, number = name.partition(SIGN)
    return (step, int(number)) if sign and number.isdecimal() else None


def step_of(name: str) -> str:
    """Return the step that the name of a step, or of a chunk of a map, belongs to."""
    return name.partition(SIGN)[0]


def settle_id(run: str, step: str, iteration: int, verb: str, nonce: str) -> str:
    """Message id of a settle; the nonce is fresh per execution."""
    return f"{run}:{step}:{iteration}:{verb}:{nonce}"


def task_id(run: str, step: str, iteration: int, attempt: int, parent: str) -> str:
    """Message id of a register write; the parent makes a second legitimate write distinct."""
    return f"{run}:{step}:{iteration}:{attempt}:{parent}"


def request_id(run: str, verb: str, nonce: str) -> str:
    """Message id of what a client asks of a run; the nonce is fresh per call, not per try."""
    return f"{run}:{verb}:{nonce}"
