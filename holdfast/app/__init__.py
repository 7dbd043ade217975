"""The command line: commands, progress display and output."""
