"""Lanes executor: one CUDA stream per client."""
