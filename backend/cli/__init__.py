"""The command line: `main` lists the commands, which stand in `race`, `bench` and `setup`."""
