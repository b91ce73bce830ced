"""Records and specs in the forms that others read."""
