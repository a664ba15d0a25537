"""Examples of language models: the tokens of records, and which of them are learned."""
