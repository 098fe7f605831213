"""A proxy that speaks TLS to the client and plain PostgreSQL to the server: the bundled server is built without TLS."""

from __future__ import annotations

import select
import socket
import ssl
import tempfile
import threading
from pathlib import Path

# Made for this proxy only, valid for a hundred years, trusted by nobody.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgKGJzRbJRf4MIvIk5
8DwY5kgw59GxXjuahr/iROuHm6KhRANCAAQdrk8i4UMJt3ajmM9L3o02BuEyBSn3
gqi4KsV0bcAeCCefNaSxR0kimEKYUtfJsWMrPNNAg7YRaX0ui6FdLS3B
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBfzCCASWgAwIBAgIUBzY5OmTMPM7ldqW9B4z0T4cYhSIwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTEwMTYwNVoYDzIxMjYxMDI4
MTAxNjA1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQdrk8i4UMJt3ajmM9L3o02BuEyBSn3gqi4KsV0bcAeCCefNaSxR0ki
mEKYUtfJsWMrPNNAg7YRaX0ui6FdLS3Bo1MwUTAdBgNVHQ4EFgQU2C0zr2yJ0YmS
SPqOnddyFWdXzN0wHwYDVR0jBBgwFoAU2C0zr2yJ0YmSSPqOnddyFWdXzN0wDwYD
VR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNIADBFAiBgR4P2qi5bDfkY63QVl9/6
CxglcPGk6DcV4R/v50kSIgIhANGr9HjFc6n62hPHhJ4oxQ1EBxGKW88bYXFavEGF
nfzJ
-----END CERTIFICATE-----
"""
SSL_REQUEST = b"\0\0\0\x08\x04\xd2\x16\x2f"


class TlsProxy:
    """Listens on a free port of the loopback address until closed."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "certificate.pem"
            path.write_text(CERTIFICATE)
            self._context.load_cert_chain(path)
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
            with self._context.wrap_socket(client, server_side=True) as secure, socket.create_connection(
                ("127.0.0.1", self._server_port)
            ) as server:
                self._pump(secure, server)
        except OSError:
            return

    def _pump(self, secure: ssl.SSLSocket, server: socket.socket) -> None:
        while True:
            ready = [secure] if secure.pending() else select.select([secure, server], [], [])[0]
            for one, other in ((secure, server), (server, secure)):
                if one in ready:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    other.sendall(data)
