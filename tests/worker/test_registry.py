"""What a handler's signature may be, and what is said about one that cannot serve.
Method: register functions, look at what was understood."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from treadle.sdk.errors import HandlerError, InvalidId
from treadle.worker import LoopContext, SyncLoopContext, SyncTaskContext, TaskContext, Worker
from treadle.worker.registry import Registry

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Diff:
    repo: str


async def async_task(ctx: TaskContext[Diff]) -> None: ...
async def async_loop(ctx: LoopContext[list[int]]) -> None: ...
def sync_task(ctx: SyncTaskContext[Diff]) -> None: ...
def sync_loop(ctx: SyncLoopContext[Diff]) -> None: ...
async def bare(ctx: TaskContext) -> None: ...  # type: ignore[type-arg]
async def unannotated(ctx): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "is_sync", "is_loop", "input_type"),
    [
        (async_task, False, False, Diff),
        (async_loop, False, True, list[int]),
        (sync_task, True, False, Diff),
        (sync_loop, True, True, Diff),
        (bare, False, False, Any),
        (unannotated, False, False, Any),
        (functools.partial(async_task), False, False, Diff),
    ],
)
def test_the_annotation_says_context_and_input(
    function: Callable[[Any], Any], is_sync: bool, is_loop: bool, input_type: Any
) -> None:
    handler = Registry().add("work", function)
    assert (handler.is_sync, handler.is_loop) == (is_sync, is_loop)
    assert handler.input_type == input_type


def test_types_that_are_local_to_the_place_of_definition_are_found() -> None:
    @dataclass
    class Local:
        x: int

    worker = Worker()

    @worker.handler("work", concurrency=3)
    async def work(ctx: TaskContext[Local]) -> None: ...

    assert worker.handlers["work"].input_type is Local
    assert worker.handlers["work"].concurrency == 3
    assert work is worker.handlers["work"].function


def test_a_method_and_a_callable_object_serve_too() -> None:
    class Service:
        async def work(self, ctx: TaskContext[Diff]) -> None: ...

        async def __call__(self, ctx: LoopContext[Diff]) -> None: ...

    assert Registry().add("work", Service().work).input_type is Diff
    handler = Registry().add("work", Service())
    assert (handler.is_sync, handler.is_loop, handler.input_type) == (False, True, Diff)


async def generator(ctx: TaskContext[Diff]) -> Any:
    yield 1


async def no_argument() -> None: ...
async def two(ctx: TaskContext[Diff], more: int) -> None: ...
async def not_a_context(ctx: Diff) -> None: ...
def sync_with_async(ctx: TaskContext[Diff]) -> None: ...
async def async_with_sync(ctx: SyncTaskContext[Diff]) -> None: ...
async def unknown_name(ctx: TaskContext[Decimal]) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (generator, "is a generator"),
        (no_argument, "handler\\(ctx\\)"),
        (two, "one argument"),
        (not_a_context, "TaskContext\\[InputType\\]"),
        (sync_with_async, "SyncTaskContext"),
        (async_with_sync, "Annotate the argument as TaskContext"),
        (unknown_name, "TYPE_CHECKING"),
    ],
)
def test_a_handler_that_cannot_serve_is_refused_with_its_place_and_the_remedy(
    function: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(HandlerError, match=says) as caught:
        Registry().add("work", function)
    assert "'work'" in str(caught.value) and "test_registry.py:" in str(caught.value)


def test_one_type_has_one_handler() -> None:
    registry = Registry()
    registry.add("work", async_task)
    with pytest.raises(HandlerError, match=r"'work' has two handlers, .*test_registry\.py:\d+ and"):
        registry.add("work", async_loop)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", "ü", "x" * 65])
def test_a_task_type_is_an_id(name: str) -> None:
    with pytest.raises(InvalidId, match="task type"):
        Registry().add(name, async_task)


@pytest.mark.parametrize("concurrency", [0, -1, 10_001])
def test_concurrency_has_a_range(concurrency: int) -> None:
    with pytest.raises(HandlerError, match=f"is {concurrency};"):
        Worker(concurrency=concurrency)
    with pytest.raises(HandlerError, match=f"handler 'work' is {concurrency};"):
        Registry().add("work", async_task, concurrency=concurrency)
