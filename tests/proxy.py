"""A proxy between an agent and a service."""

import socket
import threading
import time


class Proxy:
    """Passes connections on to a service, and can stop after so many bytes."""

    def __init__(self, target: int) -> None:
        self.sent = 0
        self.most: int | None = None
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(8192):
                if back:
                    while self.most is not None and self.sent >= self.most:
                        time.sleep(0.02)
                    self.sent += len(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()
