"""``python -m wkwdask`` and the program ``wkwdask``: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, which Ctrl-C ends without a traceback also while it is imported."""
    try:
        from wkwdask.cli import main as run
    except BaseException as error:
        # Python 3.11 wraps an interrupt while a class is created
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
