"""Widths of figures, available without importing Matplotlib."""

from __future__ import annotations

WIDTHS = {1: 3.3, 2: 6.9}  # inches of one and of two columns
