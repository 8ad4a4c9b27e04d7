"""Traces of runs: read from the log beside the engine, sent to a collector, never in its way."""
