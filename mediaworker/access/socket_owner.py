"""The lookup of the user at the other end of a loopback connection, by Linux's sock_diag(7).

Behind a reverse proxy on this machine every client looks like loopback, and a proxy that adds no header sends the same
bytes as a direct client. The user distinguishes them: proxies run as their own user (`www-data`, `haproxy`), while the
programs of the person who started the worker run as that person.

Kernels without sock_diag (gVisor, and Linux without the module tcp_diag) show the same data in /proc/net/tcp (proc(5)).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, NLMSG_ERROR = 4, 20, 1, 2
ALL_STATES = 0xFFFFFFFF
NO_COOKIE = (0xFFFFFFFF, 0xFFFFFFFF)
_HEADER = struct.Struct("=IHHII")
"""`struct nlmsghdr`."""
_ANSWER = struct.Struct("=BBBB 2s2s16s16s III IIIII")
"""`struct inet_diag_msg`; ports and addresses are left in network order."""

Address = tuple[str, int]


def is_own(peer: Address | None, here: Address | None) -> bool:
    """Whether the connection from `peer` to `here` was opened on this machine by a process of this process's user.

    Returns False also if the user is unknown, or if the peer has already closed its socket.
    """
    if peer is None or here is None:
        return False
    try:
        return owner(peer, here) == os.geteuid()
    except (OSError, ValueError):
        return False


def owner(peer: Address, here: Address) -> int | None:
    """The user id of the socket at `peer`'s end; None when no process of this network namespace holds it.

    Raises OSError if the kernel does not answer, and ValueError if an address is no IP address.
    """
    theirs, ours = _plain(peer[0]), _plain(here[0])
    if theirs.version != ours.version or not (theirs.is_loopback and ours.is_loopback):
        return None
    with contextlib.suppress(OSError):
        if (found := _by_netlink(theirs, peer[1], ours, here[1])) is not None:
            return found
    # A kernel without sock_diag answers as if it knew no such connection.
    return listed(theirs, peer[1], ours, here[1])


def _by_netlink(theirs: IPv4Address | IPv6Address, port: int, ours: IPv4Address | IPv6Address, here: int) -> int | None:
    """The user id from sock_diag. Raises OSError."""
    family = socket.AF_INET if theirs.version == 4 else socket.AF_INET6
    name = struct.pack("!HH", port, here) + _padded(theirs) + _padded(ours)
    request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, ALL_STATES)
    request += name + struct.pack("=III", 0, *NO_COOKIE)
    head = _HEADER.pack(_HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.setblocking(False)  # the kernel answers before `sendto` returns
        link.sendto(head + request, (0, 0))
        answer = link.recv(4096)
    if len(answer) < _HEADER.size + _ANSWER.size or _HEADER.unpack_from(answer)[1] == NLMSG_ERROR:
        return None
    fields = _ANSWER.unpack_from(answer, _HEADER.size)
    # If there is no such connection, the kernel answers with the listener on that port. A socket that its process has
    # closed has no inode, and root as its user.
    uid, inode = fields[-2:]
    return int(uid) if inode and b"".join(fields[4:8]) == name else None


def listed(theirs: IPv4Address | IPv6Address, port: int, ours: IPv4Address | IPv6Address, here: int) -> int | None:
    """The user id from the list of all sockets in /proc. Raises OSError."""
    files = ("tcp", "tcp6") if theirs.version == 4 else ("tcp6",)
    for name in files:
        wanted = [f"{_listed(theirs, name)}:{port:04X}", f"{_listed(ours, name)}:{here:04X}"]
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}") as lines:  # no IPv6: no list of it
            for line in lines:
                if (fields := line.split())[1:3] == wanted:
                    return int(fields[7]) if fields[9] != "0" else None
    return None


def _listed(address: IPv4Address | IPv6Address, name: str) -> str:
    """The address as /proc/net prints it: words of 32 bits in host byte order. `tcp6` lists IPv4 as mapped IPv6."""
    packed = address.packed
    if name == "tcp6" and len(packed) == 4:
        packed = b"\0" * 10 + b"\xff" * 2 + packed
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words)


def _plain(text: str) -> IPv4Address | IPv6Address:
    """The address, with mapped IPv6 (`::ffff:…`) as IPv4, which is the family of the peer's socket."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _padded(address: IPv4Address | IPv6Address) -> bytes:
    return address.packed.ljust(16, b"\0")
