"""The embedding engine: rows by key, in memory, with their optimizer state."""
