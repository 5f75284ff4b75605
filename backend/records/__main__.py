"""`python -m backend.records` prints the JSON Schema of records."""

import sys

from backend.records.file import schema

if __name__ == "__main__":
    sys.stdout.write(schema())
