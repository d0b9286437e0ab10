"""Server policies: sampling, stragglers, outliers, robust means."""
