"""The command line: commands, progress on screen, and what they print."""
