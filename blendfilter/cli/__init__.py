"""The command line: a file a command; parse, then import what the command needs. `--help` imports no dspy, no torch."""

# in the order in which --help lists them
# isort: off
from blendfilter.cli import ask as ask
from blendfilter.cli import indexing as indexing
from blendfilter.cli import serving as serving
from blendfilter.cli import evaluating as evaluating
from blendfilter.cli import reporting as reporting
from blendfilter.cli import comparing as comparing
from blendfilter.cli import rescoring as rescoring
from blendfilter.cli import reproduce as reproduce
from blendfilter.cli import silver as silver
from blendfilter.cli import compiling as compiling
from blendfilter.cli import trimming as trimming
from blendfilter.cli import doctor as doctor
# isort: on

from blendfilter.cli.app import app
from blendfilter.cli.entry import main

__all__ = ["app", "main"]
