"""Small patches that each break one mechanism, and whether the tests that should notice do."""
