"""Holdfast: teach a transformer one task after another, without old data and without task ids."""

from holdfast import importance, metrics
from holdfast.data.tasks import Split, Stream, Task
from holdfast.learner import Learner
from holdfast.methods import METHODS

__all__ = ["METHODS", "Learner", "Split", "Stream", "Task", "importance", "metrics"]
__version__ = "0.1.0"
