"""Descriptions for the model, from docstrings in the styles of Google, numpy and reST."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import docstring_parser


class Descriptions(NamedTuple):
    """What a docstring says of a function and of its parameters."""

    function: str
    parameters: dict[str, str]


def read_docstring(function: Callable[..., Any]) -> Descriptions:
    """Return what the function's docstring says; all empty without one.

    Sections about the result and exceptions are for programmers and left out.
    """
    text = inspect.getdoc(function) or ""
    try:
        parsed = docstring_parser.parse(text)
    except docstring_parser.ParseError:
        return Descriptions(text.strip(), {})
    parts = (parsed.short_description, parsed.long_description)
    return Descriptions(
        "\n\n".join(part.strip() for part in parts if part),
        {
            # numpy writes `a, b : int` for two parameters that share one description.
            name.strip().lstrip("*"): " ".join(param.description.split())
            for param in parsed.params
            if param.description
            for name in param.arg_name.split(",")
        },
    )
