"""Groups whose name alone is a command: ``treadle eval FILE``, ``treadle collect WORKFLOW``."""

from __future__ import annotations

from typing import Any, ClassVar

from typer.core import TyperGroup

_HELP = ("-h", "--help")


class DefaultGroup(TyperGroup):
    """Takes what is no command of the group for arguments of its default command."""

    default: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = [self.default, *args]
        return super().parse_args(ctx, args)
