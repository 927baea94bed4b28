"""Files to columns: finds the input, cuts it into splits, parses each split on its own."""
