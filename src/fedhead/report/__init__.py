"""Reports: tables, figures and one page about finished or running runs."""
