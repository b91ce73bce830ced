"""Generated from `logd/proto` by `make proto`; never edited."""
