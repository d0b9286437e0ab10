"""The lanes executor: one GPU stream per client."""
