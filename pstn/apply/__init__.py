"""For people with their own data: train, predict, report, examine and share a model, as commands and as functions.

Names are imported when they are first asked for: ``pstn --help`` reads ``settings`` and waits for nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pstn.apply.doctor import Finding, examine
    from pstn.apply.files import ModelError, Trained, load
    from pstn.apply.hub import from_pretrained, push_to_hub
    from pstn.apply.wrong import BadInput

_WHERE = {
    "BadInput": "wrong",
    "Finding": "doctor",
    "ModelError": "files",
    "Trained": "files",
    "examine": "doctor",
    "from_pretrained": "hub",
    "load": "files",
    "push_to_hub": "hub",
}

__all__ = ["BadInput", "Finding", "ModelError", "Trained", "examine", "from_pretrained", "load", "push_to_hub"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
