"""nginx as a reverse proxy for WebSockets, which cuts a connection on which nothing comes for a while."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lab.network.ports import ports
from lab.patience import seconds, until

CONFIGURATION = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {servers}
}}
"""
"""Of an nginx whose files are all in `folder`, in the foreground."""
_SERVER = """server {{
        listen 127.0.0.1:{front};
        location / {{
            proxy_pass http://127.0.0.1:{behind};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
            proxy_read_timeout {timeout_s}s;
        }}
    }}
"""


@contextmanager
def nginx(folder: Path, behind: Sequence[int], *, timeout_s: int) -> Iterator[list[int]]:
    """One port before each of `behind`. nginx's own `proxy_read_timeout` is 60 s."""
    fronts = ports(len(behind))
    folder.chmod(0o755)  # its processes give up root
    servers = [
        _SERVER.format(front=front, behind=port, timeout_s=timeout_s)
        for front, port in zip(fronts, behind, strict=True)
    ]
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(folder=folder, servers="".join(servers)))
    environ = os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin"}
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(file)], env=environ, stderr=subprocess.DEVNULL)
    try:
        for port in fronts:
            until(lambda port=port: listens(port), 20)
        yield fronts
    finally:
        process.terminate()
        process.wait(seconds(10))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
