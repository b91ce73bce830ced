"""Who may do what, and how much of it: kept durably, asked before anything is done.

`penstock.logd.core.acl` and `penstock.logd.core.quotas` decide; here is where rules and quotas are
kept, and what asks on behalf of the fetch endpoint and of gRPC.
"""
