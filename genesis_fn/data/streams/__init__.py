"""Streams of records, examples and batches, which stop and go on exactly."""
