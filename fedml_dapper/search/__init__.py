"""Hyper-parameter search on validation samples."""
