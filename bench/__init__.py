"""Measures Treadle on this machine: ``python -m bench`` prints JSON lines."""
