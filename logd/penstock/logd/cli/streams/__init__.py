"""`penstock logd streams`, `match` and `gaps`: a module for each kind of command."""
