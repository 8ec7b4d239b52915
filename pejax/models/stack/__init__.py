"""The layers of a model: repeated patterns as scans, their encodings, and the KV cache."""
