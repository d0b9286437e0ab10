"""Compilation of training steps: how, when it pays, and in the background while training goes on."""
