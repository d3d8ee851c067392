"""What gold says should be kept: FilCo's oracles, and silver files of what they chose."""
