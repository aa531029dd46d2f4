"""What several methods share, each module named after what it is."""
