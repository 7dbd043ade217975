"""Jobs behind the everyday commands."""
