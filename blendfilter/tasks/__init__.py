"""Question sets: one file per data set, `generic.py` for anyone's own, and `load` in front of them."""

from blendfilter.tasks.base import Hub, Questions, Task, fingerprint
from blendfilter.tasks.loading import TASKS, load

__all__ = ["TASKS", "Hub", "Questions", "Task", "fingerprint", "load"]
