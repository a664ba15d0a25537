"""Takes out of a scan what it need not do step by step."""
