"""Engines that sample completions from the student."""
