"""python -m backend: the command line."""

from backend.cli.main import main

if __name__ == "__main__":
    main()
