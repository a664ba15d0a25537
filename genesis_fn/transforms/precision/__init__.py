"""Mixed precision: each operation in the dtype of its precision class."""
