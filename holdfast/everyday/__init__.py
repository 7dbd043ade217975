"""Jobs behind the everyday commands: learn a file, classify texts, evaluate on a file."""
