"""What belongs to the paper and to our own studies."""
