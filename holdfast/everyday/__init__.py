"""The jobs behind the everyday commands."""
