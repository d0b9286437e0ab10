"""`python -m fedhead.cli` does what `fedhead` does."""

from fedhead.cli import main

main()
