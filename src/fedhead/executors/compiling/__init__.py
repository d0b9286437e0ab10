"""Compilation of training steps, also in the background, and when it pays off."""
