"""The everyday jobs behind the commands: teach a file, answer for texts, test on a file."""
