"""Keys of a batch: dedup, routing to buckets and servers, and the order of batches. The only routing code."""
