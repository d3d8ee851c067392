"""The command line: a file a group of commands; parse, then import what the command needs."""

# in the order in which --help lists them
# isort: off
from blendfilter.cli import ask as ask
from blendfilter.cli import indexes as indexes
from blendfilter.cli import runs as runs
from blendfilter.cli import reproduce as reproduce
from blendfilter.cli import silver as silver
from blendfilter.cli import compile as compile
from blendfilter.cli import train as train
from blendfilter.cli import trim as trim
from blendfilter.cli import doctor as doctor
# isort: on

from blendfilter.cli.app import app, main

__all__ = ["app", "main"]
