"""Each operation in the dtypes of its precision class."""
