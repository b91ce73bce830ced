"""Looking through a directory that others work with."""


def raise_unless_gone(error: OSError) -> None:
    """For `os.walk`, which otherwise takes a directory that cannot be read for an empty one.

    Raises:
        OSError: That is so; what is gone meanwhile is none.
    """
    if not isinstance(error, FileNotFoundError):
        raise error
