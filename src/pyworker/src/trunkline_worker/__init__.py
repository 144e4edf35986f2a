"""A model worker for Trunkline: dials a server and runs the steps that the server sends.

The connection, the slots and the threads live in `session`, `work` and `slots`; engines implement `engine.Engine`.
"""

__version__ = "0.1.0"
