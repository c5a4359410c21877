"""Whose program is at the other end of a loopback connection: Linux tells the user of every TCP socket (sock_diag(7)).

A reverse proxy on this machine makes the whole world look like loopback, and one that changes no header cannot be told
from a direct program by what it sends. It can be told by its user, because servers give up root and run as a user of
their own (`www-data`, `haproxy`), while the programs of whoever started the worker run as that user.
"""

from __future__ import annotations

import os
import socket
import struct
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

    False as well when it cannot be told: the kernel has no sock_diag, or the peer has closed its socket already.
    """
    if peer is None or here is None:
        return False
    try:
        return owner(peer, here) == os.geteuid()
    except (OSError, ValueError):
        return False


def owner(peer: Address, here: Address) -> int | None:
    """The user id of the socket at `peer`'s end; None when no process of this network namespace holds it.

    Raises OSError without sock_diag, ValueError for what is no IP address.
    """
    theirs, ours = _plain(peer[0]), _plain(here[0])
    if theirs.version != ours.version:
        return None
    family = socket.AF_INET if theirs.version == 4 else socket.AF_INET6
    name = struct.pack("!HH", peer[1], here[1]) + _padded(theirs) + _padded(ours)
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
    # Where there is no such connection, the kernel answers with whoever listens at that port. A socket that its process
    # has closed has no inode, and root as its user.
    uid, inode = fields[-2:]
    return int(uid) if inode and b"".join(fields[4:8]) == name else None


def _plain(text: str) -> IPv4Address | IPv6Address:
    """IPv4 in the spelling of IPv6 is IPv4: that is what the peer's socket has."""
    address = ip_address(text.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def _padded(address: IPv4Address | IPv6Address) -> bytes:
    return address.packed.ljust(16, b"\0")
