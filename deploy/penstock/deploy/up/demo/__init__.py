"""The demo on top of `penstock up`: it kills a leader and counts what arrived."""
