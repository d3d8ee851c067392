"""Silver contexts: what the oracles choose of every question's passages, as JSON Lines, and what that comes to."""
