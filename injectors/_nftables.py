"""A drop between two ports of a bridge that the kernel itself ends: an nftables set with time-outs.

The table is ours alone and bears the fault's id. Its chain drops what enters at one of the two ports and leaves at a
port named in the set, but for ARP: an NVSwitch resolves no addresses, so a drop one way must not silence the answers
that the other way needs, nor a retry that comes once a second hold up the path after its end. The set is empty until
the fault is fired, and its elements carry the time-out. So the fault is one netlink transaction, it ends without any
process alive, and undoing it is deleting our table. The transactions that start and stop it are encoded beforehand: at
their instant they cost one system call (pyroute2's own way costs about a millisecond more).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Any, Dict, List, Sequence

from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg
from pyroute2.netlink.nfnetlink.nftsocket import NFT_MSG_DELSETELEM, NFT_MSG_NEWSETELEM, nft_set_elem_list_msg
from pyroute2.nftables.expressions import genex, verdict
from pyroute2.nftables.main import NFTables, NFTSet, NFTSetElem

_FAMILY_BRIDGE = 7  # NFPROTO_BRIDGE
_PROTOCOL, _IN_PORT, _OUT_PORT = 1, 6, 7  # NFT_META_PROTOCOL, NFT_META_IIFNAME, NFT_META_OIFNAME
_ARP = b"\x08\x06"
_DROP, _ACCEPT = 0, 1
_TYPE_IFNAME, _IFNAMSIZ = 41, 16
_EQUAL, _UNEQUAL = 0, 1  # NFT_CMP_EQ, NFT_CMP_NEQ
_NETLINK_NETFILTER = 12
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11  # NFNL_MSG_BATCH_*
_NLMSG_HEADER = 16  # bytes before the error code of an acknowledgement
_SET, _CHAIN = "dead", "forward"
_LONGEST_MS = 24 * 3600 * 1000  # the set's own time-out; each element has a shorter one


class _PortSet(NFTSet):  # type: ignore[misc]
    """pyroute2 knows no sets of interface names; this is one."""

    def as_netlink(self) -> Dict[str, Any]:
        attributes: Dict[str, Any] = super().as_netlink()
        return attributes | {
            "NFTA_SET_KEY_TYPE": _TYPE_IFNAME,
            "NFTA_SET_KEY_LEN": _IFNAMSIZ,
            # Tells `nft list` that the key is text, so that it prints the names.
            "NFTA_SET_USERDATA": [("NFTNL_UDATA_SET_KEYBYTEORDER", struct.pack("=I", 1))],
        }


def _key(port: str) -> bytes:
    return port.encode().ljust(_IFNAMSIZ, b"\0")


class TimedDrop:
    """One table. Open it inside the bridge's network namespace: its netlink socket stays there.

    Args:
        table: the table's name, ``chaos_`` and the fault's id.
        ports: the two ports between which frames may be dropped.

    Raises:
        NetlinkError: EOPNOTSUPP or ENOENT where the kernel has no nftables for bridges.
    """

    def __init__(self, table: str, ports: Sequence[str]) -> None:
        self._table = table
        self._ports = tuple(ports)
        self._set = _PortSet(table=table, name=_SET, timeout=_LONGEST_MS)
        self._nft = NFTables(nfgen_family=_FAMILY_BRIDGE)
        self._raw = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
        self._starting = self._stopping = b""

    def close(self) -> None:
        """Close the sockets; the table stays."""
        self._nft.close()
        self._raw.close()

    def create(self) -> None:
        """Make the table, with nothing to drop yet."""
        nft = self._nft
        nft.table("add", name=self._table)
        nft.chain("add", table=self._table, name=_CHAIN, hook="forward", type="filter", policy=_ACCEPT, priority=0)
        # pyroute2 0.9 iterates over its own answer in a wrong way after the kernel has accepted the set: a TypeError.
        # Whether the set is really there shows with the rules, which refer to it.
        with contextlib.suppress(TypeError):
            nft.sets("add", set=self._set)
        for port in self._ports:
            nft.rule("add", table=self._table, chain=_CHAIN, expressions=(self._drop_from(port),))

    def _drop_from(self, port: str) -> List[Any]:
        return [
            genex("meta", {"key": _PROTOCOL, "dreg": 1}),
            genex("cmp", {"sreg": 1, "op": _UNEQUAL, "data": {"attrs": [("NFTA_DATA_VALUE", _ARP)]}}),
            genex("meta", {"key": _IN_PORT, "dreg": 1}),
            genex("cmp", {"sreg": 1, "op": _EQUAL, "data": {"attrs": [("NFTA_DATA_VALUE", _key(port))]}}),
            genex("meta", {"key": _OUT_PORT, "dreg": 1}),
            genex("lookup", {"set": _SET, "sreg": 1}),
            genex("counter", {"bytes": 0, "packets": 0}),
            *verdict(code=_DROP),
        ]

    def ready(self, to: Sequence[str], milliseconds: int) -> None:
        """Encode the transactions that drop what goes to these ports, for so long, and that end it."""
        timed = [NFTSetElem(value=_key(port), timeout=milliseconds) for port in to]
        plain = [NFTSetElem(value=_key(port)) for port in to]
        self._starting = self._transaction(NFT_MSG_NEWSETELEM, NLM_F_CREATE, timed)
        self._stopping = self._transaction(NFT_MSG_DELSETELEM, 0, plain)

    def start(self) -> None:
        """Drop from now on; the kernel ends it after the time.

        Raises:
            OSError: the kernel refuses.
        """
        self._commit(self._starting)

    def stop(self) -> None:
        """End it now, if the kernel has not ended it already."""
        with contextlib.suppress(FileNotFoundError):  # its time-out was first
            self._commit(self._stopping)

    def _transaction(self, kind: int, flags: int, elements: List[NFTSetElem]) -> bytes:
        """A batch as nfnetlink wants it: begin, the change (acknowledged), end."""
        change = nft_set_elem_list_msg()
        change["nfgen_family"] = _FAMILY_BRIDGE
        change["attrs"] = [
            ["NFTA_SET_ELEM_LIST_TABLE", self._table],
            ["NFTA_SET_ELEM_LIST_SET", _SET],
            ["NFTA_SET_ELEM_LIST_ELEMENTS", [element.as_netlink(None) for element in elements]],
        ]
        change["header"]["type"] = (NFNL_SUBSYS_NFTABLES << 8) | kind
        change["header"]["flags"] = NLM_F_REQUEST | NLM_F_ACK | flags
        begin, end = nfgen_msg(), nfgen_msg()
        for frame, number in ((begin, _BATCH_BEGIN), (end, _BATCH_END)):
            frame["res_id"] = NFNL_SUBSYS_NFTABLES
            frame["header"]["type"] = number
            frame["header"]["flags"] = NLM_F_REQUEST
        batch = b""
        for sequence, message in enumerate((begin, change, end), start=1):
            message["header"]["sequence_number"] = sequence
            message.encode()
            batch += bytes(message.data)
        return batch

    def _commit(self, transaction: bytes) -> None:
        self._raw.send(transaction)  # the kernel has committed it when this returns
        code: int = struct.unpack_from("=i", self._raw.recv(65536), _NLMSG_HEADER)[0]
        if code:
            raise OSError(-code, os.strerror(-code))

    def dropped(self) -> int:
        """Packets dropped so far."""
        total = 0
        for rule in self._nft.get_rules():
            if rule.get_attr("NFTA_RULE_TABLE") != self._table:
                continue
            for expression in rule.get_attr("NFTA_RULE_EXPRESSIONS"):
                if expression.get_attr("NFTA_EXPR_NAME") == "counter":
                    total += expression.get_attr("NFTA_EXPR_DATA").get_attr("NFTA_COUNTER_PACKETS")
        return total

    def exists(self) -> bool:
        """Whether the table is there."""
        return any(table.get_attr("NFTA_TABLE_NAME") == self._table for table in self._nft.get_tables())

    def delete(self) -> None:
        """Remove the table with everything in it; no error if it is not there."""
        try:
            self._nft.table("del", name=self._table)
        except NetlinkError as error:
            if error.code != errno.ENOENT:
                raise
