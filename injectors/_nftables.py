"""Drops that the kernel itself ends: nftables tables of ours, whose sets have time-outs.

A table bears the fault's id. What its rules drop must also be found in a set, which is empty until the fault is fired,
and whose elements carry the time-out. So the fault is one netlink transaction, it ends without any process alive, and
undoing it is deleting our table.

The table also has an owner, the socket that made it (Linux 5.12): the kernel removes it when that socket is closed, by
whatever death of its process, and lets nobody else change it. Everything therefore goes through one raw socket.
"""

from __future__ import annotations

import contextlib
import errno
from abc import ABC, abstractmethod
from typing import Any, ClassVar, List, NamedTuple, Optional, Sequence, Tuple

from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg, nftsocket
from pyroute2.nftables.expressions import genex, verdict
from pyroute2.nftables.main import NFTSetElem

from injectors import _netlink
from injectors._control import Network
from injectors._netlink import ACK, CREATE, DUMP, EXCLUSIVE
from injectors.contract import StillHeld

MARK = "chaos_"  # and the fault's id: the name of a table of ours
_FAMILY_INET, _FAMILY_BRIDGE = 1, 7  # NFPROTO_*
_HOOK_FORWARD = 2  # NF_BR_FORWARD
_HOOK_PREROUTING, _HOOK_POSTROUTING = 0, 4  # NF_INET_*
_BEFORE_OTHERS, _AFTER_OTHERS = -400, 300  # priorities: before connections are tracked, after addresses are translated
_NETWORK_HEADER = 1  # NFT_PAYLOAD_NETWORK_HEADER
_OFFSETS_4, _OFFSETS_6 = (12, 16), (8, 24)  # of source and destination in the IP header
_PROTOCOLS = {4: b"\x08\x00", 6: b"\x86\xdd"}
_TYPE_ETHERTYPE = 10  # nft's own numbering of types
_PROTOCOL, _IN_PORT, _OUT_PORT = 1, 6, 7  # NFT_META_PROTOCOL, NFT_META_IIFNAME, NFT_META_OIFNAME
_ARP = b"\x08\x06"
_DROP, _ACCEPT = 0, 1
_TYPE_IFNAME, _IFNAMSIZ = 41, 16
_EQUAL, _UNEQUAL = 0, 1  # NFT_CMP_EQ, NFT_CMP_NEQ
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11  # NFNL_MSG_BATCH_*
_OWNER = 0x2  # NFT_TABLE_F_OWNER
_NO_OWNERS = (errno.EINVAL, errno.EOPNOTSUPP)  # before Linux 5.12
_SET, _FORWARD = "dead", "forward"
_LONGEST_MS = 24 * 3600 * 1000  # the set's own time-out; each element has a shorter one


class _TableMessage(nftsocket.nft_table_msg):  # type: ignore[misc]
    """pyroute2 0.9 does not know owners."""

    nla_map = (*nftsocket.nft_table_msg.nla_map, ("NFTA_TABLE_OWNER", "be32"))


class Table(NamedTuple):
    """A table: its name, and the netlink port of the socket that owns it, if one does."""

    name: str
    owner: Optional[int]


class _OwnTable(ABC):
    """One table of ours. Open it inside the network namespace that is meant: its netlink socket stays there.

    Everything raises OSError with the kernel's error number where the kernel refuses: EOPNOTSUPP or ENOENT where it has
    no nftables for this family.

    Args:
        table: the table's name, ``chaos_`` and the fault's id.
    """

    owned: ClassVar[bool] = True  # a test of older kernels turns it off
    family: ClassVar[int]
    family_name: ClassVar[str]  # as `nft` writes it
    _set_type: ClassVar[Tuple[int, int]]  # of the set's key: nft's number of the type, bytes
    _set_notes: ClassVar[Tuple[Tuple[str, bytes], ...]] = ()

    def __init__(self, table: str) -> None:
        self._table = table
        self._netlink = _netlink.Netlink(_netlink.NETFILTER)
        self._starting = self._stopping = b""

    def close(self) -> None:
        """Close the socket; a table that this object made goes with it, where the kernel knows owners."""
        self._netlink.close()

    def create(self) -> None:
        """Make the table, with nothing to drop yet: one transaction."""
        if self.owned:
            try:
                self._netlink.change(self._creation(_OWNER))
                return
            except OSError as error:
                if error.errno not in _NO_OWNERS:
                    raise
        # Without an owner the set's time-outs still end the effect, and a later agent's sweep removes the table.
        self._netlink.change(self._creation(0))

    def _creation(self, flags: int) -> bytes:
        table = [("NFTA_TABLE_NAME", self._table), ("NFTA_TABLE_FLAGS", flags)]
        key_type, key_bytes = self._set_type
        names = [
            ("NFTA_SET_TABLE", self._table),
            ("NFTA_SET_NAME", _SET),
            ("NFTA_SET_ID", 1),
            ("NFTA_SET_FLAGS", {"NFT_SET_TIMEOUT"}),
            ("NFTA_SET_TIMEOUT", _LONGEST_MS),
            ("NFTA_SET_KEY_TYPE", key_type),
            ("NFTA_SET_KEY_LEN", key_bytes),
        ]
        if self._set_notes:
            names.append(("NFTA_SET_USERDATA", list(self._set_notes)))
        return _transaction(
            self._message(_TableMessage, nftsocket.NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, table),
            self._message(nftsocket.nft_set_msg, nftsocket.NFT_MSG_NEWSET, CREATE, names),
            *self._contents(),
        )

    @abstractmethod
    def _contents(self) -> List[Any]:
        """The table's chains and rules."""

    def _chain(self, name: str, hook: int, priority: int) -> Any:
        attributes = [
            ("NFTA_CHAIN_TABLE", self._table),
            ("NFTA_CHAIN_NAME", name),
            ("NFTA_CHAIN_HOOK", {"attrs": [("NFTA_HOOK_HOOKNUM", hook), ("NFTA_HOOK_PRIORITY", priority)]}),
            ("NFTA_CHAIN_POLICY", _ACCEPT),
            ("NFTA_CHAIN_TYPE", "filter"),
        ]
        return self._message(nftsocket.nft_chain_msg, nftsocket.NFT_MSG_NEWCHAIN, CREATE, attributes)

    def _drop(self, chain: str, conditions: List[Any]) -> Any:
        """A rule that counts and drops what meets these conditions."""
        drop = [*conditions, genex("counter", {"bytes": 0, "packets": 0}), *verdict(code=_DROP)]
        attributes = [("NFTA_RULE_TABLE", self._table), ("NFTA_RULE_CHAIN", chain), ("NFTA_RULE_EXPRESSIONS", drop)]
        return self._message(nftsocket.nft_rule_msg, nftsocket.NFT_MSG_NEWRULE, CREATE, attributes)

    def _ready(self, keys: Sequence[bytes], milliseconds: int) -> None:
        """Encode the transactions that put these keys into the set, for so long, and that remove them."""
        timed = [NFTSetElem(value=key, timeout=milliseconds) for key in keys]
        plain = [NFTSetElem(value=key) for key in keys]
        self._starting = _transaction(self._elements(nftsocket.NFT_MSG_NEWSETELEM, CREATE, timed))
        self._stopping = _transaction(self._elements(nftsocket.NFT_MSG_DELSETELEM, 0, plain))

    def _elements(self, kind: int, flags: int, elements: List[NFTSetElem]) -> Any:
        attributes = [
            ("NFTA_SET_ELEM_LIST_TABLE", self._table),
            ("NFTA_SET_ELEM_LIST_SET", _SET),
            ("NFTA_SET_ELEM_LIST_ELEMENTS", [element.as_netlink(None) for element in elements]),
        ]
        return self._message(nftsocket.nft_set_elem_list_msg, kind, flags, attributes)

    def start(self) -> None:
        """Drop from now on; the kernel ends it after the time."""
        self._netlink.change(self._starting)

    def stop(self) -> None:
        """End it now, if the kernel has not ended it already."""
        with contextlib.suppress(FileNotFoundError):  # its time-out was first
            self._netlink.change(self._stopping)

    def dropped(self) -> int:
        """Packets dropped so far."""
        total = 0
        for expression in self._expressions("counter"):
            total += expression.get_attr("NFTA_COUNTER_PACKETS")
        return total

    def _expressions(self, name: str) -> List[Any]:
        """The data of all expressions of one name in the table's rules."""
        found = []
        wanted = [("NFTA_RULE_TABLE", self._table)]
        for rule in self._list(nftsocket.nft_rule_msg, nftsocket.NFT_MSG_GETRULE, wanted):
            if rule.get_attr("NFTA_RULE_TABLE") != self._table:
                continue
            for expression in rule.get_attr("NFTA_RULE_EXPRESSIONS"):
                if expression.get_attr("NFTA_EXPR_NAME") == name:
                    found.append(expression.get_attr("NFTA_EXPR_DATA"))
        return found

    def tables(self) -> List[Table]:
        """All tables of this family in this namespace, whoever made them."""
        return [
            Table(table.get_attr("NFTA_TABLE_NAME"), table.get_attr("NFTA_TABLE_OWNER"))
            for table in self._list(_TableMessage, nftsocket.NFT_MSG_GETTABLE, [])
        ]

    def marked(self) -> List[str]:
        """The names of those that bear our mark."""
        return [table.name for table in self.tables() if table.name.startswith(MARK)]

    def _list(self, form: Any, kind: int, attributes: List[Tuple[str, Any]]) -> List[Any]:
        found = []
        for data in self._netlink.dump(_encoded(self._message(form, kind, DUMP, attributes), 1)):
            message = form(data)
            message.decode()
            found.append(message)
        return found

    def exists(self) -> bool:
        """Whether the table is there."""
        return self._find() is not None

    def _find(self) -> Optional[Table]:
        return next((table for table in self.tables() if table.name == self._table), None)

    def delete(self) -> None:
        """Remove the table with everything in it; no error if it is not there.

        Raises:
            StillHeld: a living process owns it; the kernel removes it when that process ends.
        """
        deletion = self._message(_TableMessage, nftsocket.NFT_MSG_DELTABLE, 0, [("NFTA_TABLE_NAME", self._table)])
        try:
            self._netlink.change(_transaction(deletion))
        except FileNotFoundError:
            return
        except PermissionError:
            table = self._find()
            if table is None:  # its owner has ended meanwhile
                return
            if table.owner is None or table.owner == self._netlink.port:
                raise
            holders = self._netlink.processes_at(table.owner)
            raise StillHeld(self._held(table, holders), holders) from None

    def _held(self, table: Table, holders: List[int]) -> str:
        who = " and ".join(f"process {pid}" for pid in holders)
        if not who:
            who = f"a living process that cannot be seen from here (netlink port {table.owner})"
        what = f"nftables table {self.family_name} {table.name}"
        return f"{what} is owned by {who}: the kernel removes it when that has been killed"

    def _message(self, form: Any, kind: int, flags: int, attributes: List[Tuple[str, Any]]) -> Any:
        message = form()
        message["nfgen_family"] = self.family
        message["attrs"] = attributes
        message["header"]["type"] = (NFNL_SUBSYS_NFTABLES << 8) | kind
        message["header"]["flags"] = _netlink.REQUEST | flags
        return message


class TimedDrop(_OwnTable):
    """Drops what enters a bridge at one of two ports and leaves at a port named in the set, but for ARP.

    An NVSwitch resolves no addresses, so a drop one way must not silence the answers that the other way needs, nor a
    retry that comes once a second hold up the path after its end.

    Args:
        table: the table's name, ``chaos_`` and the fault's id.
        ports: the two ports between which frames may be dropped.
    """

    family = _FAMILY_BRIDGE
    family_name = "bridge"
    _set_type = (_TYPE_IFNAME, _IFNAMSIZ)
    # Tells `nft list` that the key is text (in the host's byte order), so that it prints the names.
    _set_notes = (("NFTNL_UDATA_SET_KEYBYTEORDER", b"\1\0\0\0"),)

    def __init__(self, table: str, ports: Sequence[str]) -> None:
        super().__init__(table)
        self._ports = tuple(ports)

    def _contents(self) -> List[Any]:
        return [self._chain(_FORWARD, _HOOK_FORWARD, 0), *(self._rule(port) for port in self._ports)]

    def _rule(self, port: str) -> Any:
        return self._drop(
            _FORWARD,
            [
                genex("meta", {"key": _PROTOCOL, "dreg": 1}),
                genex("cmp", {"sreg": 1, "op": _UNEQUAL, "data": _value(_ARP)}),
                genex("meta", {"key": _IN_PORT, "dreg": 1}),
                genex("cmp", {"sreg": 1, "op": _EQUAL, "data": _value(_key(port))}),
                genex("meta", {"key": _OUT_PORT, "dreg": 1}),
                genex("lookup", {"set": _SET, "sreg": 1}),
            ],
        )

    def ready(self, to: Sequence[str], milliseconds: int) -> None:
        """Encode the transactions that drop what goes to these ports, for so long, and that end it."""
        self._ready([_key(port) for port in to], milliseconds)

    def ports(self) -> Tuple[str, ...]:
        """The ports between which the table may drop, as its rules name them, sorted."""
        values = [each.get_attr("NFTA_CMP_DATA").get_attr("NFTA_DATA_VALUE") for each in self._expressions("cmp")]
        return tuple(sorted(bytes(v).rstrip(b"\0").decode(errors="replace") for v in values if len(v) == _IFNAMSIZ))


class PeerDrop(_OwnTable):
    """Drops what comes from some networks, or goes to them, also what is only passed on.

    The set has protocols in it: IPv4 and IPv6, while the fault lasts.

    Args:
        table: the table's name, ``chaos_`` and the fault's id.
        peers: the networks.
        incoming, outgoing: which way.
    """

    family = _FAMILY_INET
    family_name = "inet"
    _set_type = (_TYPE_ETHERTYPE, 2)

    def __init__(self, table: str, peers: Sequence[Network], *, incoming: bool = True, outgoing: bool = True) -> None:
        super().__init__(table)
        self._peers = tuple(peers)
        self._ways = (incoming, outgoing)

    def _contents(self) -> List[Any]:
        incoming, outgoing = self._ways
        found = []
        if incoming:
            found.append(self._chain("from", _HOOK_PREROUTING, _BEFORE_OTHERS))
            found += [self._rule("from", peer, source=True) for peer in self._peers]
        if outgoing:
            found.append(self._chain("to", _HOOK_POSTROUTING, _AFTER_OTHERS))
            found += [self._rule("to", peer, source=False) for peer in self._peers]
        return found

    def _rule(self, chain: str, peer: Network, *, source: bool) -> Any:
        size = peer.max_prefixlen // 8
        offsets = _OFFSETS_4 if peer.version == 4 else _OFFSETS_6
        payload = {"dreg": 1, "base": _NETWORK_HEADER, "offset": offsets[0 if source else 1], "len": size}
        mask = {"sreg": 1, "dreg": 1, "len": size, "mask": _value(peer.netmask.packed), "xor": _value(bytes(size))}
        return self._drop(
            chain,
            [
                genex("meta", {"key": _PROTOCOL, "dreg": 1}),
                genex("cmp", {"sreg": 1, "op": _EQUAL, "data": _value(_PROTOCOLS[peer.version])}),
                genex("lookup", {"set": _SET, "sreg": 1}),
                genex("payload", payload),
                genex("bitwise", mask),
                genex("cmp", {"sreg": 1, "op": _EQUAL, "data": _value(peer.network_address.packed)}),
            ],
        )

    def ready(self, milliseconds: int) -> None:
        """Encode the transactions that drop, for so long, and that end it."""
        self._ready(list(_PROTOCOLS.values()), milliseconds)


def _key(port: str) -> bytes:
    return port.encode().ljust(_IFNAMSIZ, b"\0")


def _value(data: bytes) -> Any:
    return {"attrs": [("NFTA_DATA_VALUE", data)]}


def _transaction(*changes: Any) -> bytes:
    """A batch as nfnetlink wants it: begin, the changes (the last one acknowledged), end."""
    begin, end = nfgen_msg(), nfgen_msg()
    for frame, number in ((begin, _BATCH_BEGIN), (end, _BATCH_END)):
        frame["res_id"] = NFNL_SUBSYS_NFTABLES
        frame["header"]["type"] = number
        frame["header"]["flags"] = _netlink.REQUEST
    changes[-1]["header"]["flags"] |= ACK
    return b"".join(_encoded(message, number) for number, message in enumerate((begin, *changes, end), start=1))


def _encoded(message: Any, sequence: int) -> bytes:
    message["header"]["sequence_number"] = sequence
    message.encode()
    return bytes(message.data)
