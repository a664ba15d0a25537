"""What stands around routines of linear algebra: layouts, tables of addresses, failures, signs."""
