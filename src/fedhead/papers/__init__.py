"""The three papers: their tables, published values, analyses and figures."""
