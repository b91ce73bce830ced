"""The collector's progress on disk, which it reads when it starts."""
