"""`python -m fedhead` does what `fedhead` does."""

from fedhead.cli import main

main()
