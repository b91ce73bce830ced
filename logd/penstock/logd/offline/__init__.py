"""Data directories of a logd that is not running: check, repair, dump, backup."""
