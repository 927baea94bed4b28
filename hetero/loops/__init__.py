"""The step loops of every role as plain functions over protocols: in-process runs and actors run the same ones."""
