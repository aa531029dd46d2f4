"""Files that are whole or not there, one writer at a time, and small."""
