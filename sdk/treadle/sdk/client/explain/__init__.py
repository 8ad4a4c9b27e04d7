"""Why a run is not getting on, and what to do: ``Client.explain``.

    server ──asking.py──> Facts (facts.py) ──reasons.py, steps.py──> Explanation
                following.py: the same of the runs that it waits for

What ``notes.py`` says of a run is where it begins. Added is what costs a request: who executes
its tasks, what is before them, how far the engines are, whether the server takes writes.
"""
