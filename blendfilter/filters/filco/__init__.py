"""FilCo: the three oracles, and its filter as a prompt."""
