"""Data sets: built-in ones, files and folders."""
