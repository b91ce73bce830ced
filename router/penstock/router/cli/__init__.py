"""The commands of `penstock router` and `penstock lake`, a module for each group."""
