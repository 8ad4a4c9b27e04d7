"""``treadle run list``: what its options find, and how it says that there is more.
Method: documents written by hand to a real server; no engine runs, so every document is read."""

from __future__ import annotations

import time

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, play

from treadle.cli import exits, run_list
from treadle.sdk.children import ParentRun
from treadle.sdk.settings import Settings


def _runs(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        now_ms = round(time.time() * 1000)
        for n in range(6):
            await stage.document(
                f"r{n}",
                status="failed" if n % 2 else "completed",
                requested_ms=now_ms - n * 3_600_000,
                lane="l" if n == 5 else "",
                parent=ParentRun(run="r0", step="s", root="r0") if n in (2, 5) else None,
                metadata={"customer": f"c{n % 3}", "amount": n, "code": str(n), "paid": n < 2},
            )

    play(settings, story)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", "r0 r1 r2 r3 r4 r5"),
        ("--status failed", "r1 r3 r5"),
        ("--status failed --status running", "r1 r3 r5"),
        ("--where customer=c1", "r1 r4"),
        ("--where amount=4", "r4"),
        ("--where code=4", "r4"),
        ("--where amount>=4", "r4 r5"),
        ("--where amount<4 --where customer=c0 --where paid=true", "r0"),
        ("--where paid=false --limit 9", "r2 r3 r4 r5"),
        ("--since 90m", "r0 r1"),
        ("--until 270m", "r5"),
        ("--since 2d --until 4h", "r4 r5"),
        ("--lane l", "r5"),
        ("--parent r0 --status failed", "r5"),
    ],
)
def test_options_find_the_runs_they_name(
    settings: Settings, treadle: Run, options: str, expected: str
) -> None:
    _runs(settings)
    lines = treadle("run", "list", "--json", *options.split()).lines
    assert " ".join(line["id"] for line in lines) == expected
    counted = treadle("run", "list", "--json", "--count", *options.split()).json
    assert counted["total"] == len(lines) == sum(counted["by_status"].values())


def test_a_start_is_suggested_where_there_are_no_runs_and_not_where_none_matches(
    settings: Settings, treadle: Run
) -> None:
    play(settings, _nothing)
    assert "; start one: treadle run start WORKFLOW" in treadle("run", "list").err
    queued = treadle("run", "list", "--status", "queued").err
    assert queued.startswith("no runs that are queued at ") and "start" not in queued


def test_a_list_that_is_not_all_says_where_it_goes_on(
    settings: Settings, treadle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _runs(settings)
    *first, last = treadle("run", "list", "--limit", "4", "--json").lines
    assert [line["id"] for line in first] == ["r0", "r1", "r2", "r3"] and set(last) == {"cursor"}
    rest = treadle("run", "list", "--json", "--cursor", last["cursor"]).lines
    assert [line["id"] for line in rest] == ["r4", "r5"]
    told = treadle("run", "list", "--limit", "4").err
    assert told == f"there are more: --cursor {last['cursor']}\n"
    monkeypatch.setattr(run_list, "SCANNED_MANY", 5)
    assert "no engine answered from its index, so 6 documents" in treadle("run", "list").err
    counted = treadle("run", "list", "--count", "--where", "paid=true")
    assert [line.split() for line in counted.out.splitlines()] == [
        ["STATUS", "RUNS"],
        ["completed", "1"],
        ["failed", "1"],
        ["all", "2"],
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--status", "done"), "'done' is no status"),
        (("--where", "customer"), "is no condition"),
        (("--where", "=x"), "is no condition"),
        (("--where", "a=1", "--where", "a=2"), "has 'a' twice"),
        (("--since", "yesterday"), "--since 'yesterday' is no time. Give an age"),
        (("--since", "99999999999999d"), "before all times"),
        (("--cursor", "x"), "'x' is no cursor"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(
    treadle: Run, settings: Settings, options: tuple[str, ...], words: str
) -> None:
    play(settings, _nothing)
    assert words in treadle("run", "list", *options, code=exits.USAGE).err


async def _nothing(_: Stage) -> None:
    pass
