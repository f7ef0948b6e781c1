"""Sharing models: folders on a hub, through ``huggingface_hub`` (extra ``hub``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pstn.apply.card import NAME
from pstn.apply.files import ABOUT, CARD, MODEL, ModelError, Trained, load

#: The files that are shared; the log stays at home.
SHARED = (ABOUT, MODEL, CARD)


def from_pretrained(name: str | Path, *, device: str | torch.device = "cpu", **options: Any) -> Trained:
    """The model of a folder on this machine or, failing that, of a repository on the hub.

    Nothing in such a folder is run or unpickled: it holds numbers and the names of layers.

    Arguments:
        name: A folder, or the hub's ``owner/name``.
        device: Where the network shall be.
        options: For ``huggingface_hub.snapshot_download``: revision, cache_dir, token, local_files_only, ...

    Example:
        >>> import tempfile
        >>> from pstn.data import Normalise
        >>> from pstn.recipe import network
        >>> made = Trained(network((1, 28, 28), 2), ("cat", "dog"), (1, 28, 28), Normalise(0.5, 0.25))
        >>> from_pretrained(made.save(tempfile.mkdtemp())).predict(torch.rand(3, 1, 28, 28)).probs.shape
        torch.Size([3, 2])
    """
    if Path(name).is_dir():
        return load(name, device=device)
    if not isinstance(name, str) or name.count("/") != 1 or name.startswith((".", "/")):
        raise ModelError(f"{name} is neither a folder nor a name on the hub, owner/name")
    try:
        found = _hub().snapshot_download(name, allow_patterns=list(SHARED), **options)
    except OSError as error:  # all of the hub's own errors are of this kind
        words = " ".join(str(error).split())[:200]
        raise ModelError(f"{name} is no folder here, and cannot be had from the hub: {words}") from error
    return load(found, device=device)


def push_to_hub(
    model: Trained | str | Path, name: str, *, private: bool = True, message: str = "A model of pstn", **options: Any
) -> str:
    """Put a model on the hub: ``model.safetensors``, ``model.json`` and the card, which says how calibrated it is.

    Arguments:
        model: A model, or the folder of one.
        name: The hub's ``owner/name``; made when missing.
        private: Whether a repository that is made is private.
        message: What the change is called.
        options: For ``huggingface_hub.HfApi``: token, endpoint.

    Returns:
        The address of what was written.
    """
    import tempfile

    trained = model if isinstance(model, Trained) else load(model)
    api = _hub().HfApi(**options)
    with tempfile.TemporaryDirectory() as folder:
        trained.save(folder)
        # the hub shows README.md as a repository's card
        words = (Path(folder) / CARD).read_text(encoding="utf-8").replace(NAME, name)
        (Path(folder) / "README.md").write_text(words, encoding="utf-8")
        (Path(folder) / CARD).unlink()
        api.create_repo(name, private=private, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return str(done)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError("the hub needs huggingface_hub: pip install 'pstn[hub]'") from error
    return huggingface_hub
