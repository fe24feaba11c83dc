"""A drop between two ports of a bridge that the kernel itself ends: an nftables set with time-outs.

The table is ours alone and bears the fault's id. Its chain drops what enters at one of the two ports and leaves at a
port named in the set, but for ARP: an NVSwitch resolves no addresses, so a drop one way must not silence the answers
that the other way needs, nor a retry that comes once a second hold up the path after its end. The set is empty until
the fault is fired, and its elements carry the time-out. So the fault is one netlink transaction, it ends without any
process alive, and undoing it is deleting our table.

The table also has an owner, the socket that made it (Linux 5.12): the kernel removes it when that socket is closed, by
whatever death of its process, and lets nobody else change it. Everything therefore goes through one raw socket.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Any, ClassVar, List, NamedTuple, Optional, Sequence, Tuple

from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg, nftsocket
from pyroute2.nftables.expressions import genex, verdict
from pyroute2.nftables.main import NFTSetElem

from injectors import _netlink
from injectors._netlink import ACK, CREATE, DUMP, EXCLUSIVE
from injectors.contract import StillHeld

_FAMILY_BRIDGE = 7  # NFPROTO_BRIDGE
_HOOK_FORWARD = 2  # NF_BR_FORWARD
_PROTOCOL, _IN_PORT, _OUT_PORT = 1, 6, 7  # NFT_META_PROTOCOL, NFT_META_IIFNAME, NFT_META_OIFNAME
_ARP = b"\x08\x06"
_DROP, _ACCEPT = 0, 1
_TYPE_IFNAME, _IFNAMSIZ = 41, 16
_EQUAL, _UNEQUAL = 0, 1  # NFT_CMP_EQ, NFT_CMP_NEQ
_BATCH_BEGIN, _BATCH_END = 0x10, 0x11  # NFNL_MSG_BATCH_*
_OWNER = 0x2  # NFT_TABLE_F_OWNER
_NO_OWNERS = (errno.EINVAL, errno.EOPNOTSUPP)  # before Linux 5.12
_SET, _CHAIN = "dead", "forward"
_LONGEST_MS = 24 * 3600 * 1000  # the set's own time-out; each element has a shorter one


class _TableMessage(nftsocket.nft_table_msg):  # type: ignore[misc]
    """pyroute2 0.9 does not know owners."""

    nla_map = (*nftsocket.nft_table_msg.nla_map, ("NFTA_TABLE_OWNER", "be32"))


class Table(NamedTuple):
    """A table for bridges: its name, and the netlink port of the socket that owns it, if one does."""

    name: str
    owner: Optional[int]


class TimedDrop:
    """One table. Open it inside the bridge's network namespace: its netlink socket stays there.

    Everything raises OSError with the kernel's error number where the kernel refuses: EOPNOTSUPP or ENOENT where it has
    no nftables for bridges.

    Args:
        table: the table's name, ``chaos_`` and the fault's id.
        ports: the two ports between which frames may be dropped.
    """

    owned: ClassVar[bool] = True  # a test of older kernels turns it off

    def __init__(self, table: str, ports: Sequence[str]) -> None:
        self._table = table
        self._ports = tuple(ports)
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
        hook = {"attrs": [("NFTA_HOOK_HOOKNUM", _HOOK_FORWARD), ("NFTA_HOOK_PRIORITY", 0)]}
        chain = [
            ("NFTA_CHAIN_TABLE", self._table),
            ("NFTA_CHAIN_NAME", _CHAIN),
            ("NFTA_CHAIN_HOOK", hook),
            ("NFTA_CHAIN_POLICY", _ACCEPT),
            ("NFTA_CHAIN_TYPE", "filter"),
        ]
        names = [
            ("NFTA_SET_TABLE", self._table),
            ("NFTA_SET_NAME", _SET),
            ("NFTA_SET_ID", 1),
            ("NFTA_SET_FLAGS", {"NFT_SET_TIMEOUT"}),
            ("NFTA_SET_TIMEOUT", _LONGEST_MS),
            ("NFTA_SET_KEY_TYPE", _TYPE_IFNAME),
            ("NFTA_SET_KEY_LEN", _IFNAMSIZ),
            # Tells `nft list` that the key is text (in the host's byte order), so that it prints the names.
            ("NFTA_SET_USERDATA", [("NFTNL_UDATA_SET_KEYBYTEORDER", b"\1\0\0\0")]),
        ]
        return _transaction(
            _message(_TableMessage, nftsocket.NFT_MSG_NEWTABLE, CREATE | EXCLUSIVE, table),
            _message(nftsocket.nft_chain_msg, nftsocket.NFT_MSG_NEWCHAIN, CREATE, chain),
            _message(nftsocket.nft_set_msg, nftsocket.NFT_MSG_NEWSET, CREATE, names),
            *(self._rule(port) for port in self._ports),
        )

    def _rule(self, port: str) -> Any:
        drop = [
            genex("meta", {"key": _PROTOCOL, "dreg": 1}),
            genex("cmp", {"sreg": 1, "op": _UNEQUAL, "data": {"attrs": [("NFTA_DATA_VALUE", _ARP)]}}),
            genex("meta", {"key": _IN_PORT, "dreg": 1}),
            genex("cmp", {"sreg": 1, "op": _EQUAL, "data": {"attrs": [("NFTA_DATA_VALUE", _key(port))]}}),
            genex("meta", {"key": _OUT_PORT, "dreg": 1}),
            genex("lookup", {"set": _SET, "sreg": 1}),
            genex("counter", {"bytes": 0, "packets": 0}),
            *verdict(code=_DROP),
        ]
        attributes = [("NFTA_RULE_TABLE", self._table), ("NFTA_RULE_CHAIN", _CHAIN), ("NFTA_RULE_EXPRESSIONS", drop)]
        return _message(nftsocket.nft_rule_msg, nftsocket.NFT_MSG_NEWRULE, CREATE, attributes)

    def ready(self, to: Sequence[str], milliseconds: int) -> None:
        """Encode the transactions that drop what goes to these ports, for so long, and that end it."""
        timed = [NFTSetElem(value=_key(port), timeout=milliseconds) for port in to]
        plain = [NFTSetElem(value=_key(port)) for port in to]
        self._starting = _transaction(self._elements(nftsocket.NFT_MSG_NEWSETELEM, CREATE, timed))
        self._stopping = _transaction(self._elements(nftsocket.NFT_MSG_DELSETELEM, 0, plain))

    def _elements(self, kind: int, flags: int, elements: List[NFTSetElem]) -> Any:
        attributes = [
            ("NFTA_SET_ELEM_LIST_TABLE", self._table),
            ("NFTA_SET_ELEM_LIST_SET", _SET),
            ("NFTA_SET_ELEM_LIST_ELEMENTS", [element.as_netlink(None) for element in elements]),
        ]
        return _message(nftsocket.nft_set_elem_list_msg, kind, flags, attributes)

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

    def ports(self) -> Tuple[str, ...]:
        """The ports between which the table may drop, as its rules name them, sorted."""
        values = [each.get_attr("NFTA_CMP_DATA").get_attr("NFTA_DATA_VALUE") for each in self._expressions("cmp")]
        return tuple(sorted(bytes(v).rstrip(b"\0").decode(errors="replace") for v in values if len(v) == _IFNAMSIZ))

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
        """All tables for bridges in this namespace, whoever made them."""
        return [
            Table(table.get_attr("NFTA_TABLE_NAME"), table.get_attr("NFTA_TABLE_OWNER"))
            for table in self._list(_TableMessage, nftsocket.NFT_MSG_GETTABLE, [])
        ]

    def _list(self, form: Any, kind: int, attributes: List[Tuple[str, Any]]) -> List[Any]:
        found = []
        for data in self._netlink.dump(_encoded(_message(form, kind, DUMP, attributes), 1)):
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
        deletion = _message(_TableMessage, nftsocket.NFT_MSG_DELTABLE, 0, [("NFTA_TABLE_NAME", self._table)])
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
            raise StillHeld(_held(table, holders), holders) from None


def _held(table: Table, holders: List[int]) -> str:
    who = " and ".join(f"process {pid}" for pid in holders)
    if not who:
        who = f"a living process that cannot be seen from here (netlink port {table.owner})"
    return f"nftables table bridge {table.name} is owned by {who}: the kernel removes it when that has been killed"


def _key(port: str) -> bytes:
    return port.encode().ljust(_IFNAMSIZ, b"\0")


def _message(form: Any, kind: int, flags: int, attributes: List[Tuple[str, Any]]) -> Any:
    message = form()
    message["nfgen_family"] = _FAMILY_BRIDGE
    message["attrs"] = attributes
    message["header"]["type"] = (NFNL_SUBSYS_NFTABLES << 8) | kind
    message["header"]["flags"] = _netlink.REQUEST | flags
    return message


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
