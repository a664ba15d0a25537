"""Settings, and the guards and pauses that they switch."""
