"""nginx from Debian over one folder: an honest web server, and beside it those that people meet."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from support.daemons import daemon

if TYPE_CHECKING:
    from pathlib import Path

USER, PASSWORD = "reader", "open-sesame"

_SERVERS = {
    "url": (
        "location ~ ^/fresh-[0-9]+/(.*)$ {{ alias {root}/$1; autoindex on; absolute_redirect off; "
        "}}"
    ),
    "without_ranges": "max_ranges 0;",
    "compressing": "gzip on; gzip_types *; gzip_min_length 1;",
    "paging": (
        "error_page 404 =200 /page.html; location = /page.html {{ root {folder}; default_type "
        "text/html; }}"
    ),
    "refusing": (
        "error_page 404 =403 /page.html; location = /page.html {{ root {folder}; default_type "
        "text/html; }}"
    ),
    "redirecting": "location / {{ return 302 {url}$request_uri; }} location /loop/ {{ return 302 $request_uri; }}"  # noqa: E501
    " location ~ ^/file/(.*) {{ return 302 file://{root}/$1; }}",
    "protected": "auth_basic data; auth_basic_user_file {folder}/users;",
}

_CONFIGURATION = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  keepalive_requests 1000000;
  default_type application/octet-stream;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  root {root};
{servers}
}}
"""


@dataclass(frozen=True)
class Nginx:
    """URLs of the servers over one folder."""

    root: Path
    """The folder."""
    url: str
    """Serves ranges. Below ``/fresh-1``, ``/fresh-2`` and so on are the same files, and lists of
    folders, for clients that remember URLs."""
    without_ranges: str
    """Answers a request for a range with the whole file."""
    compressing: str
    """Compresses with gzip, if the client accepts it."""
    paging: str
    """Returns an HTML page with status 200 for an absent file."""
    refusing: str
    """Returns 403 for an absent file."""
    redirecting: str
    """Redirects to ``url``; to a local file below ``/file/``, and to itself below ``/loop/``."""
    protected: str
    """Asks for a name and a password."""


def nginx_program():
    """Return the path of the program, None if it is not installed."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@contextlib.contextmanager
def nginx(root, folder):
    """Serve a folder; the other one is for the server's own files."""
    (folder / "page.html").write_text(
        "<!DOCTYPE html><html><body>Nothing here, but welcome.</body></html>"
    )
    (folder / "users").write_text(f"{USER}:{{PLAIN}}{PASSWORD}\n")

    def command(ports):
        url = f"http://127.0.0.1:{ports[0]}"
        lines = [
            f"  server {{ listen 127.0.0.1:{port}; "
            f"{text.format(folder=folder, root=root, url=url)} }}"
            for port, text in zip(ports, _SERVERS.values(), strict=True)
        ]
        (folder / "nginx.conf").write_text(
            _CONFIGURATION.format(folder=folder, root=root, servers="\n".join(lines))
        )
        return [nginx_program(), "-e", "stderr", "-c", folder / "nginx.conf"]

    with daemon(command, len(_SERVERS), folder / "nginx.log") as ports:
        yield Nginx(root, *(f"http://127.0.0.1:{port}" for port in ports))
