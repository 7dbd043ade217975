"""The command line, and progress on screen."""
