"""What a stored array is. Opens nothing: bytes come from what it is given."""
