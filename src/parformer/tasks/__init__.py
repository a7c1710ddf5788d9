"""What a model is trained for; importing this package registers every task."""

from parformer.tasks.base import TASKS, Loss, Task, find_task, forget_task, task
from parformer.tasks.language import Language
from parformer.tasks.masked import Masked
from parformer.tasks.translate import Translate

__all__ = [
    "TASKS",
    "Language",
    "Loss",
    "Masked",
    "Task",
    "Translate",
    "find_task",
    "forget_task",
    "task",
]
