"""CDIT's trimming: witnesses, and the overlay over any index that drops what they separate."""
