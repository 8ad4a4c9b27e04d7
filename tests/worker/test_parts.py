"""Small parts by themselves: the checkpoint cache, the loop's watchdog, the thread pool.
Method: call them; the watchdog is given the time, the pool is given functions that block."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest

from treadle.sdk.messages import Checkpoint
from treadle.worker.step_cache import StepCache
from treadle.worker.threads import BlockingPool
from treadle.worker.watchdog import LoopWatch


def _checkpoint(nonce: str) -> Checkpoint:
    return Checkpoint(iteration=0, attempt=1, token=1, nonce=nonce, state=msgspec.Raw(b"1"))


def test_the_cache_answers_for_one_sequence_only() -> None:
    cache = StepCache[Checkpoint]()
    kept = _checkpoint("a")
    cache.put("r", "s", 5, kept, 1)
    assert cache.get("r", "s", 5) is kept
    assert cache.get("r", "s", 4) is None
    assert cache.get("r", "t", 5) is None
    cache.put("r", "s", 6, _checkpoint("b"), 1)
    assert cache.get("r", "s", 5) is None and len(cache) == 1


def test_the_cache_keeps_within_both_bounds_and_drops_what_was_not_used() -> None:
    cache = StepCache[Checkpoint](entries_max=2, bytes_max=100)
    cache.put("r", "a", 1, _checkpoint("a"), 10)
    cache.put("r", "b", 2, _checkpoint("b"), 10)
    assert cache.get("r", "a", 1) is not None
    cache.put("r", "c", 3, _checkpoint("c"), 10)
    assert cache.get("r", "b", 2) is None and cache.get("r", "a", 1) is not None
    cache.put("r", "d", 4, _checkpoint("d"), 95)
    assert len(cache) == 1 and cache.get("r", "d", 4) is not None
    cache.put("r", "e", 5, _checkpoint("e"), 101)
    assert len(cache) == 0, "one that is larger than the whole cache is not kept"
    cache.put("r", "f", 6, _checkpoint("f"), 100)
    assert cache.get("r", "f", 6) is not None


def test_a_stopped_process_is_not_taken_for_a_blocked_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def watched() -> LoopWatch:
        watch = LoopWatch()
        watch.start()
        watch.stop()
        return watch

    watch = asyncio.run(watched())
    now_s = time.monotonic()
    watch.check(now_s + 60)  # Neither thread ran for a minute.
    assert caplog.text == ""
    for tenth in range(601, 621):
        watch.check(now_s + tenth / 10)
    assert caplog.text.count("worker.loop-blocked") == 1


def test_a_thread_pool_has_no_more_threads_than_it_needed_at_once() -> None:
    together = threading.Barrier(3, timeout=10)

    def meet() -> int:
        together.wait()
        return threading.get_ident()

    async def story() -> None:
        pool = BlockingPool("pool-under-test")
        threads = set(await asyncio.gather(*(pool.run(meet) for _ in range(3))))
        assert len(threads) == 3
        for _ in range(10):
            assert await pool.run(threading.get_ident) in threads
        with pytest.raises(SystemExit):
            await pool.run(lambda: exec("raise SystemExit(1)"))
        assert await pool.run(lambda: 1) == 1
        pool.close()

    asyncio.run(story())
