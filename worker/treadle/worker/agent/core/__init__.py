"""The agent as data and pure functions: no I/O, no clock, no randomness.

    state   = fold(apply, entries)            what has happened is all there is
    action  = decide(agent, state, now)       what has to happen next
    entry   = what came of the action         appended to the journal, then applied

``agent.run()`` and the durable loop drive these two functions alike, so a run that was killed
anywhere goes on by folding its journal and deciding again.
"""
