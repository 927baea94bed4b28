"""State on disk: rows as Parquet, dense parameters as safetensors, a manifest that says what belongs together."""
