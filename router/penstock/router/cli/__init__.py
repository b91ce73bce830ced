"""The commands of `penstock router` and `penstock lake`, each group in a module of its own."""
