"""What runs the peers' own test files on this library (`benchmarks/peer_suites.py`)."""
