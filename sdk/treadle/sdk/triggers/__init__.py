"""Triggers: what starts runs by itself. Times are pure (``times.py``), the rest is what is stored."""
