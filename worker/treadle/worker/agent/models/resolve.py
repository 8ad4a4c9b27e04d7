"""From the name of a model in a setting to the model."""

from __future__ import annotations

import os

from treadle.sdk.errors import UserError
from treadle.sdk.wording import shown
from treadle.worker.agent.models.port import Model

_FORMS = "'anthropic:NAME' or 'openai:NAME@URL', e.g. 'openai:qwen3@http://127.0.0.1:8080/v1'"


def resolve_model(model: str | Model) -> Model:
    """Return the model that the text names; a model is returned as it is.

    ``anthropic:NAME`` takes its key and address from ``ANTHROPIC_API_KEY`` and
    ``ANTHROPIC_BASE_URL``; ``openai:NAME@URL`` takes its key from ``OPENAI_API_KEY``, and its
    address from ``OPENAI_BASE_URL`` if ``@URL`` is left out. Raises ``UserError``.
    """
    if not isinstance(model, str):
        return model
    provider, name, base_url = _parts(model)
    return _anthropic(name, base_url) if provider == "anthropic" else _openai(model, name, base_url)


def check_model(model: object) -> None:
    """Raise ``UserError`` unless it is the name of a model, of a provider that is known.

    Looks at the text alone: keys, addresses and extras may come later.
    """
    if not isinstance(model, str):
        raise UserError(
            f"{shown(model)} is no model, and each turn of an agent asks one. Write {_FORMS}, or "
            "give a model object."
        )
    _parts(model)


def _parts(model: str) -> tuple[str, str, str]:
    """Return provider, name and base URL; the last is '' if the text has none."""
    provider, colon, rest = model.partition(":")
    name, at, base_url = rest.rpartition("@")
    if not at or not base_url.startswith(("http://", "https://")):
        name, base_url = rest, ""
    if not colon or not name.strip():
        raise UserError(
            f"model {model!r} names no {'model' if colon else 'provider'}: a provider and a "
            f"provider's model are needed. Write {_FORMS}."
        )
    if provider not in ("anthropic", "openai"):
        raise UserError(
            f"model {model!r} is of the provider {provider!r}, which is not known (known: "
            f"anthropic, openai). Write {_FORMS}, or give the agent a model object."
        )
    return provider, name, base_url


def _anthropic(name: str, base_url: str) -> Model:
    try:
        from treadle.worker.agent.models.anthropic import AnthropicModel
    except ModuleNotFoundError as exc:
        raise _extra_missing(f"anthropic:{name}", exc) from exc
    return AnthropicModel(name, base_url=base_url or None)


def _openai(model: str, name: str, base_url: str) -> Model:
    base_url = base_url or os.environ.get("OPENAI_BASE_URL", "")
    if not base_url:
        raise UserError(
            f"model {model!r} has no address: servers of this protocol are many. Write "
            f"'openai:{name}@http://HOST:PORT/v1', or set OPENAI_BASE_URL."
        )
    try:
        from treadle.worker.agent.models.openai import OpenAICompatibleModel
    except ModuleNotFoundError as exc:
        raise _extra_missing(model, exc) from exc
    return OpenAICompatibleModel(name, base_url, os.environ.get("OPENAI_API_KEY", ""))


def _extra_missing(model: str, exc: ModuleNotFoundError) -> UserError:
    return UserError(
        f"model {model!r} cannot be used: the package {exc.name!r} is not installed, because it "
        "belongs to an optional extra. Install it: pip install 'treadle[agent]'."
    )
