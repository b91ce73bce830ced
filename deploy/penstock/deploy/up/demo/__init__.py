"""What `penstock demo` adds to `penstock up`: it kills a leader, and counts what arrived."""
