"""Reports: tables, figures and an HTML page about finished or running runs."""
