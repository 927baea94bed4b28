"""The SSD tier: rows in append-only segment files, found by a small index in memory."""
