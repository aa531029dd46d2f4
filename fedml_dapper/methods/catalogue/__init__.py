"""The methods, one file each; none imports another."""
