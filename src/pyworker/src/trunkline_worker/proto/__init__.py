"""Messages of the worker protocol, generated from `proto/trunkline/v1/worker.proto` by `regenerate.sh`."""

from .trunkline.v1 import worker_pb2 as messages

ATTACH = "/trunkline.v1.Workers/Attach"
"""Path of the call that attaches a worker."""

__all__ = ["ATTACH", "messages"]
