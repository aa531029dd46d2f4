"""Benches: the papers' tables and figures as grids of runs, a resumable queue, and their reports."""
