"""A pipeline on this host: `penstock up`, `penstock demo` and `penstock down`."""
