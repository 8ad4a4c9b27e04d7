"""Pictures of pages, taken by a browser without a window."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

WIDTH, HEIGHT = 1400, 1100
LOADING_MS = 25_000
"""What a page has to load in, by the browser's own clock."""
PATIENCE_S = 120
BYTES_MIN, BYTES_MAX = 30_000, 300_000
"""Less is an empty page, and more is too much for a page of documentation."""


def browser() -> str | None:
    """Return where the browser is; None if there is none."""
    return shutil.which("chromium")


def take(page: str, picture: Path, profile: Path) -> None:
    """Write a picture of the page as it stands when it has loaded."""
    executable = browser()
    assert executable is not None
    picture.parent.mkdir(parents=True, exist_ok=True)
    picture.unlink(missing_ok=True)
    command = [
        executable,
        "--headless",
        "--no-sandbox",  # It is root in its network, and loads pages of this test alone.
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
        "--force-prefers-reduced-motion",  # Else a panel is caught as it slides in.
        f"--window-size={WIDTH},{HEIGHT}",
        f"--virtual-time-budget={LOADING_MS}",
        f"--user-data-dir={profile}",
        f"--screenshot={picture}",
        page,
    ]
    env = {**os.environ, "HOME": str(profile)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert picture.exists(), done.stderr[-2_000:]
    size = picture.stat().st_size
    assert BYTES_MIN < size < BYTES_MAX, f"{picture} has {size:,} bytes: look at it"
