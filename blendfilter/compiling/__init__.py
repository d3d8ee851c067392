"""DSPy's optimisers over any module: programs compiled, saved with their recipe, checked and loaded."""
