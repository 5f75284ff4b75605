"""Models' files: the built-in model, folders, the Hub, and prepared folders of the cache."""
