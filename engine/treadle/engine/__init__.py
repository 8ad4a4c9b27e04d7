"""The engine: a pure core (``core``) in a thin shell on JetStream. Read ``core`` first."""

from treadle.engine.engine import Engine

__all__ = ["Engine"]
