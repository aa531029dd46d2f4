"""Subcommands of ``fedml-dapper``, one file each, and what they have in common."""
