"""CDIT: rules as data, the judge that goes by them, and its filter."""
