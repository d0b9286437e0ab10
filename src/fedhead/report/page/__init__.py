"""The report page and the live board."""
