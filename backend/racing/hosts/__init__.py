"""Where races run: on a thread of this process, or in a supervised worker process."""
