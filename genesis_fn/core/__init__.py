"""What everything stands on: dtypes, avals, arrays, trees, primitives, programs, errors."""
