"""pyroute2's routing netlink alone.

``import pyroute2`` loads all of its 370 modules; a lab needs the few behind ``IPRoute`` and is up 50 ms sooner without
the rest. While those are imported a bare package stands in for pyroute2's own ``__init__``; a later, ordinary import of
pyroute2 in the same process finds the real one.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyroute2 import IPRoute, NetlinkError
else:
    _whole = "pyroute2" in sys.modules
    if not _whole:
        _spec = importlib.machinery.PathFinder.find_spec("pyroute2")
        if _spec is None or _spec.submodule_search_locations is None:
            raise ImportError("pyroute2 is not installed", name="pyroute2")
        _bare = types.ModuleType("pyroute2")
        _bare.__path__ = list(_spec.submodule_search_locations)
        _bare.__spec__ = _spec
        sys.modules["pyroute2"] = _bare
    try:
        from pyroute2.iproute.linux import IPRoute
        from pyroute2.netlink.exceptions import NetlinkError
    finally:
        if not _whole:
            del sys.modules["pyroute2"]

__all__ = ["IPRoute", "NetlinkError"]
