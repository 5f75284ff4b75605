"""python -m backend: the command line."""

import os
import sys

INTERRUPTED = 130

if __name__ == "__main__":
    try:
        from backend.cli.main import main

        main()
    except KeyboardInterrupt:  # while what it takes was imported
        sys.exit(INTERRUPTED)
    except SystemExit as ending:
        if ending.code == INTERRUPTED:
            # A race may be within native code, which aborts if the interpreter ends under it.
            os._exit(INTERRUPTED)
        raise
