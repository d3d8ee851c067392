"""The command line: a file a group of commands; parse, then import what the command needs."""

from blendfilter.cli.app import app, main

__all__ = ["app", "main"]
