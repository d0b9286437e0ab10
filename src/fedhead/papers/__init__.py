"""Reproduction of three papers: tables, published values, analyses and figures."""
