"""``treadle demo``: a loop repairs a package, loses its worker to kill -9, and resumes.

``run.py`` is the whole from start to end, ``stage.py`` its processes, ``story.py`` what they
did, ``screen.py`` and ``summary.py`` what is shown. The workflow is ``examples/code_repair``.
"""

from treadle.cli.demo.run import run_demo

__all__ = ["run_demo"]
