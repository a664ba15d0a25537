"""What a generated kernel computes, as instructions over loops."""
