"""Single key presses on a terminal, without Enter; nothing where there is no terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def on_key(key: str, action: Callable[[], None]) -> Generator[bool]:
    """Call ``action`` whenever the key is pressed; yield whether it can be pressed at all."""
    try:
        import termios
        import tty
    except ImportError:  # Not on this platform.
        yield False
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield False
        return
    descriptor = sys.stdin.fileno()
    if os.tcgetpgrp(descriptor) != os.getpgrp():  # In the background: the keys are the shell's.
        yield False
        return
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if key in os.read(descriptor, 64).decode(errors="ignore").lower():
            action()

    tty.setcbreak(descriptor)  # Ctrl-C stays a signal.
    loop.add_reader(descriptor, pressed)
    try:
        yield True
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
