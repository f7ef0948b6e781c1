"""Tables: what a module works out once from how it was made, keeps where it is, and need not save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Tabled(nn.Module):
    """A module with tables: buffers that follow from how it was made, and are no part of its state.

    A module that is only described (on the device ``meta``), or that is given memory with nothing in it
    (``to_empty``), has no values until its state is loaded. The tables are not loaded, so they come by themselves.
    """

    def tables(self) -> dict[str, Tensor | None]:
        """The tables by name, on the default device; None for one that is not needed."""
        return {}

    def lay_tables(self) -> None:
        """Make the tables; the end of a constructor."""
        for name, table in self.tables().items():
            self.register_buffer(name, table, persistent=False)
        if not torch.compiler.is_compiling():  # what is made in a compiled function is not loaded
            self.register_load_state_dict_post_hook(_found)

    def _made(self) -> dict[str, Tensor | None]:
        with torch.device("cpu"):
            return self.tables()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Tabled:
        before = {name: table for name, table in self._buffers.items() if table is not None}
        super()._apply(fn, recurse)
        names = self._non_persistent_buffers_set & before.keys()
        made = self._made() if any(before[name].is_meta for name in names) else {}
        for name in names:
            after: Any = self._buffers[name]
            table = made.get(name, after) if before[name].is_meta else before[name]
            if not after.is_meta:  # by itself it may be memory with nothing in it
                self._buffers[name] = table.to(after)
        return self


def _found(module: nn.Module, incompatible: Any) -> None:
    """Make tables without values where the weights have been assigned theirs."""
    assert isinstance(module, Tabled)
    device = next((p.device for p in module.parameters()), torch.get_default_device())
    lost = {name: table.dtype for name, table in module._buffers.items() if table is not None and table.is_meta}
    if device.type == "meta" or not lost:
        return
    for name, table in module._made().items():
        if name in lost and table is not None:
            module._buffers[name] = table.to(device, lost[name])
