"""What users do with whole pytrees: select and replace parts of them, and look at them."""
