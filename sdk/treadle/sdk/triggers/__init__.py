"""Triggers: what starts runs by itself. What is stored, what it is called, and when it fires."""
