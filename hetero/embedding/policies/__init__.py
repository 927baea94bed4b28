"""Which keys get rows and which rows go: admission, statistics, eviction."""
