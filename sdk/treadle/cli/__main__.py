"""``python -m treadle.cli``: the same as the command ``treadle``."""

from treadle.cli.main import main

main()
