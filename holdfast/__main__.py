"""Run the command line with `python -m holdfast`."""

from holdfast.app.main import main

main()
