"""The version of this package, as it stands in the record of every run."""

VERSION = "0.2.0"
