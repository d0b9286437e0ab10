"""Policies of the server: sampling, stragglers, outliers, robust means."""
