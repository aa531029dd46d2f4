"""Benches: the papers' tables and figures as grids of runs, with a resumable queue and reports."""
