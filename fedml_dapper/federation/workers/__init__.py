"""Local training in this process, one client after another, or in forked worker processes side by side."""
