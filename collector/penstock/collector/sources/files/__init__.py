"""Lines of files: which files, which file is which, and reading each to its end."""
