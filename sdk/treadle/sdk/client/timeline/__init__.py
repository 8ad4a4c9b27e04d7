"""What a run did when, and how two runs differ: read off its stored events, without any backend.

events ──folding.py──> Timeline (spans in order) ──diffing.py──> Difference of two
"""
