"""References to arrays that change."""
