"""What a run writes and shows."""
