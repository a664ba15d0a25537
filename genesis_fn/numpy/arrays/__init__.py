"""Arrays made, converted and looked at; their methods."""
