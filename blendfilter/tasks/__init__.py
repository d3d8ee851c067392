"""Question sets: one file a data set, layouts that they share, and `load` in front of them."""

from blendfilter.tasks.base import Hub, Questions, Task
from blendfilter.tasks.loading import TASKS, load

__all__ = ["TASKS", "Hub", "Questions", "Task", "load"]
