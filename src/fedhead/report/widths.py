"""Widths of figures, available without importing Matplotlib."""

from __future__ import annotations

WIDTHS = {1: 3.3, 2: 6.9}  # widths in inches of figures over one and two columns
