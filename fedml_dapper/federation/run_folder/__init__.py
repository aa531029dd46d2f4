"""What a run writes, and goes on from: ledger, records, checkpoints, models."""
