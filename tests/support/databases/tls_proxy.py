"""A proxy that speaks TLS to the client and plain PostgreSQL to the server: the bundled server is built without TLS."""

from __future__ import annotations

import selectors
import socket
import ssl
import tempfile
import threading
from pathlib import Path

from actors.security.authority import make_certificates

SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


class TlsProxy:
    """Listens on a free port of the loopback address until closed."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            make_certificates(Path(folder), "proxy", ["server"])
            self._context.load_cert_chain(Path(folder) / "server.pem", Path(folder) / "server.key")
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if client.recv(8, socket.MSG_WAITALL) != SSL_REQUEST:
                client.close()
                return
            client.sendall(b"S")
            with (
                self._context.wrap_socket(client, server_side=True) as secure,
                socket.create_connection(("127.0.0.1", self._server_port)) as server,
            ):
                self._pump(secure, server)
        except OSError:
            return

    def _pump(self, secure: ssl.SSLSocket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:  # select() refuses descriptors above 1,023
            selector.register(secure, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while True:
                ready = [secure] if secure.pending() else [key.fileobj for key, _ in selector.select()]
                for one, other in ((secure, server), (server, secure)):
                    if one in ready:
                        data = one.recv(1 << 20)
                        if not data:
                            return
                        other.sendall(data)
