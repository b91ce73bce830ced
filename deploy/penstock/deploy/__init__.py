"""The `penstock` command and the single-host launcher."""
