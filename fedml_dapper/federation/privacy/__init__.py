"""What a run gives away of one client: the account of its noise, and uploads under masks."""
