"""What tests share: drivers, generators of programs, models of hardware, rules of comparison."""
