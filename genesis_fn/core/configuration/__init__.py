"""Settings, the transfer guard, and the suspension of garbage collection while compiling."""
