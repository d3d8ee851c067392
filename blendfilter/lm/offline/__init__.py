"""The `offline` reader: no model, it truly reads the rendered prompt. It shows the pipeline, not its quality."""

from blendfilter.lm.offline.reader import OfflineEngine, read

__all__ = ["OfflineEngine", "read"]
