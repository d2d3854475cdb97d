"""``python -m wkwdask``: the command line."""

from wkwdask.cli import main

main()
