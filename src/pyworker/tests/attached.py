"""A worker in threads of the test's process, attached to a test server."""

import threading

from scheduler import Scheduler, Server

from trunkline_worker.session import Session, Target
from trunkline_worker.toy import ToyEngine


class Attached:
    def __init__(self, engine=None, **target):
        self.server = Server(target.pop("credentials", None))
        self.engine = engine or ToyEngine()
        self.session = Session(self.engine, Target(self.server.address, "w", **target))
        self.failure = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            self.session.run()
        except BaseException as error:
            self.failure = error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.stop()
        self.thread.join(20)
        self.server.stop()
        assert not self.thread.is_alive()


def greet(worker, **options):
    """Accepts the worker and returns a scheduler for it; `welcome` is still to be sent."""
    peer = worker.server.accept()
    hello = peer.receive("hello")
    return Scheduler(peer, hello, **{"blocks": 40, "block_size": 16, **options})
