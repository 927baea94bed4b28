"""State on disk: snapshots as folders of Parquet, safetensors and JSON, with a manifest that says what is whole."""
