"""A run's trace: whose ids are functions of what is stored, and what crosses the wire for it."""
