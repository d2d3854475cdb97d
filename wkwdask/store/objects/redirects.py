"""Redirects of web servers: which hosts a client reaches, and which redirects are followed.

The network library of obstore follows redirects to any host and has no option against it. So a
client gets a proxy that nobody can reach for all hosts but its own, and a request that a server
redirects to another host fails. It is then made again without obstore, one redirect after the
other, to find the final address by the rules of :func:`resolve`.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
import threading
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from http.client import HTTPConnection

NOWHERE = "127.0.0.1:0"
"""Address of the proxy that nobody can reach."""
_MOST_REDIRECTS = 10
_SECONDS = 8  # for one answer
_REDIRECTS = (301, 302, 303, 307, 308)
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address


def client_options(url: str, hosts: str = "") -> dict[str, str]:
    """Return options of obstore under which a client reaches only the host of a URL.

    ``hosts`` are other names, with commas between them, in place of that host. Where the user's
    own proxy serves the host, all requests go through it: it decides which hosts they reach.
    """
    proxy = _proxy_of(urlsplit(url))
    if proxy is None:
        return {"proxy_url": f"http://{NOWHERE}", "proxy_excludes": hosts or _host(urlsplit(url))}
    return {"proxy_url": proxy} if urlsplit(proxy).scheme in _PORTS else {}


def resolve(url: str) -> str:
    """Return the address at which the redirects of a file end.

    They are followed to ``https`` without any credentials, and to ``http`` only from ``http`` of
    the same host. Addresses of private networks are reached only if the first host has one.

    Raises
    ------
    OSError
        A redirect that is not followed, or a server that does not answer. Names both hosts.
    """
    first = here = urlsplit(url)
    is_private = _is_private(first, first)
    for _ in range(_MOST_REDIRECTS + 1):
        location = _location(here, first)
        if location is None:
            return here.geturl()
        there = _next(here, location, first)
        _check(here, there, first, is_private)
        here = there
    raise _refused(
        first,
        here,
        f"after {_MOST_REDIRECTS} other redirects, which are not followed any further",
        first,
    )


def next_server(url: str) -> str | None:
    """Return the server to which a URL redirects, None if it does not say."""
    here = urlsplit(url)
    try:
        location = _location(here, here)
        return None if location is None else _server(_next(here, location, here))
    except OSError:
        return None


def _next(here: SplitResult, location: str, first: SplitResult) -> SplitResult:
    """Return the address that a header ``Location`` means."""
    try:
        there = urlsplit(urljoin(here.geturl(), location))
        _ = there.port  # which is checked when it is asked for
    except ValueError as error:
        raise OSError(
            errno.EIO,
            f"cannot be read: {_server(here)} redirects to what is no address ({error})",
            first.geturl(),
        ) from None
    return there._replace(path=there.path or "/", fragment="")


def _check(here: SplitResult, there: SplitResult, first: SplitResult, is_private: bool) -> None:
    if there.scheme not in _PORTS or there.hostname is None:
        raise _refused(here, there, "which is no web server", first)
    if there.username is not None:
        raise _refused(here, there, "with a password, which is not followed", first)
    if there.scheme == "http" and not (here.scheme == "http" and here.hostname == there.hostname):
        raise _refused(
            here, there, "an address without encryption (http), which is not followed", first
        )
    if not is_private and _is_private(there, first):
        raise _refused(here, there, "an address of a private network, which is not followed", first)


def _refused(here: SplitResult, there: SplitResult, why: str, first: SplitResult) -> OSError:
    return OSError(
        errno.EIO,
        f"cannot be read: {_server(here)} redirects to {_server(there)}, {why}",
        first.geturl(),
    )


def _server(url: SplitResult) -> str:
    """Return protocol, host and port; neither a password nor a query, which may be a signature."""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def _host(url: SplitResult) -> str:
    """Return the name of a host as the network library writes it."""
    host = url.hostname or ""
    try:
        return (
            socket.inet_ntoa(socket.inet_aton(host))
            if host[:1].isdigit()
            else host.encode("idna").decode()
        )
    except (OSError, UnicodeError):
        return host


def _is_private(url: SplitResult, first: SplitResult) -> bool:
    """Check whether any address of a host is not of the public internet.

    Behind the user's own proxy, which finds the addresses itself, only an address in the URL
    counts.
    """
    host = _host(url)
    flags = socket.AI_NUMERICHOST if _proxy_of(url) is not None else 0
    try:
        found = socket.getaddrinfo(
            host, url.port or _PORTS[url.scheme], type=socket.SOCK_STREAM, flags=flags
        )
    except (OSError, UnicodeError):
        if flags:
            return False
        via = "" if url is first else f", to which {_server(first)} redirects"
        raise OSError(
            errno.EIO,
            f"cannot be read: the name of the server is unknown: {host}{via}",
            first.geturl(),
        ) from None
    return any(is_private_address(str(address[0])) for *_, address in found)


def is_private_address(text: str) -> bool:
    """Check whether an address is private, of this machine, of a link, or reserved."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        inner = (
            ipaddress.IPv4Address(address.packed[-4:])
            if address in _NAT64
            else address.ipv4_mapped or address.sixtofour
        )
        address = inner or address
    return not address.is_global or address.is_multicast


def _proxy_of(url: SplitResult) -> str | None:
    """Return the URL of the user's own proxy for a host, None if there is none.

    It is that of ``HTTP_PROXY``, ``HTTPS_PROXY`` or ``ALL_PROXY``, unless ``NO_PROXY`` has the
    host.
    """
    from urllib.request import getproxies, proxy_bypass  # slow to import

    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(url.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _location(url: SplitResult, first: SplitResult) -> str | None:
    """Ask a server for the first byte of a file; returns the redirect of its answer, None for any
    other answer."""
    from http.client import HTTPException  # slow to import

    connection, target = _connection(url)
    # The time of each socket operation is limited, too, but a server may send byte after byte.
    is_over = threading.Event()
    timer = threading.Timer(_SECONDS, _end, [connection, is_over])
    timer.daemon = True
    timer.start()
    try:
        connection.request(
            "GET", target, headers={"Range": "bytes=0-0", "User-Agent": "wkwdask", "Accept": "*/*"}
        )
        answer = connection.getresponse()
        if is_over.is_set():  # http.client takes a head that ends too early for a short one
            raise TimeoutError
        location = answer.getheader("Location") if answer.status in _REDIRECTS else None
    except (HTTPException, OSError, ValueError) as error:
        where = (
            _server(url) if url is first else f"{_server(url)}, to which {_server(first)} redirects"
        )
        if isinstance(error, TimeoutError) or is_over.is_set():
            raise TimeoutError(
                errno.ETIMEDOUT, f"no answer within {_SECONDS} seconds from {where}", first.geturl()
            ) from None
        raise OSError(
            errno.EIO, f"cannot be read: no answer from {where}: {error}", first.geturl()
        ) from None
    else:
        # http.client decodes headers as Latin-1
        return None if location is None else location.encode("latin-1").decode(errors="replace")
    finally:
        timer.cancel()
        connection.close()


def _end(connection: HTTPConnection, is_over: threading.Event) -> None:
    is_over.set()
    with contextlib.suppress(OSError, AttributeError):  # not open yet, or no longer
        connection.sock.shutdown(socket.SHUT_RDWR)


def _connection(url: SplitResult) -> tuple[HTTPConnection, str]:
    """Return a connection to a host, or to the user's proxy for it, and the target of the
    request."""
    from base64 import b64encode
    from http.client import HTTPConnection, HTTPSConnection  # slow to import

    kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
    path = quote(url.path or "/", safe="/!$&'()*+,;=:@~%") + (
        f"?{quote(url.query, safe='/!$&()*+,;=:@~%?')}" if url.query else ""
    )
    proxy = _proxy_of(url)
    if proxy is None:
        return kind(_host(url), url.port, timeout=_SECONDS), path
    server = urlsplit(proxy)
    user = (
        None
        if server.username is None
        else f"{unquote(server.username)}:{unquote(server.password or '')}".encode()
    )
    headers = {} if user is None else {"Proxy-Authorization": f"Basic {b64encode(user).decode()}"}
    connection = kind(
        server.hostname or "", server.port or _PORTS.get(server.scheme), timeout=_SECONDS
    )
    connection.set_tunnel(_host(url), url.port or _PORTS[url.scheme], headers)
    return connection, path
