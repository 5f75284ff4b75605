"""Where this program keeps what it need not make or measure twice."""

import os
from pathlib import Path

#: Names another folder for it.
CACHE = "DECODE_DERBY_CACHE"


def cache_dir() -> Path:
    """Where prepared folders live: $DECODE_DERBY_CACHE, or the user's cache folder."""
    import platformdirs

    chosen = os.environ.get(CACHE)
    path = Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("decode-derby")
    return path.absolute()
