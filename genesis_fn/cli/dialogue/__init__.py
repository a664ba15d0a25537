"""What `genesis-fn chat` is made of: the conversation, its commands, where messages come from and
where answers go."""
