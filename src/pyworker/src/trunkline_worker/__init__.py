"""A model worker for Trunkline: dials a server and runs the steps that the server sends.

The connection, the slots and the threads live in `session`, `work` and `slots`; engines implement `Engine`. What an engine of
another package needs is imported here.
"""

from .engine import Engine
from .facts import Abilities, KvFacts, LayerGroup, LockStep, ModelFacts, Settings
from .results import EngineLost, Fault, Logprob, Result, StepError
from .slots import HOLE, Batch, SlotTable

__version__ = "0.1.0"

__all__ = [
    "HOLE",
    "Abilities",
    "Batch",
    "Engine",
    "EngineLost",
    "Fault",
    "KvFacts",
    "LayerGroup",
    "LockStep",
    "Logprob",
    "ModelFacts",
    "Result",
    "Settings",
    "SlotTable",
    "StepError",
]
