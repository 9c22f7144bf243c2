"""Published trace sets of the Hugging Face hub as folders on the disk. I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agentreplay.errors import TraceError

# A path on the command line loses one of the two slashes.
_ADDRESS = re.compile(r"hf:/+([^/@]+/[^/@]+)(?:@([^/]+))?/?")


@dataclass(frozen=True, slots=True)
class Published:
    """A copy of a published set.

    Attributes:
        name: Owner and name on the hub.
        revision: The commit that was read.
        folder: Where it lies.
    """

    name: str
    revision: str
    folder: Path


def is_address(path: Path) -> bool:
    """Whether a path means a set on the hub: hf://owner/name or hf://owner/name@revision."""
    return str(path).startswith("hf:/")


def is_pinned(path: Path) -> bool:
    """Whether a path means a set on the hub as it was at a revision that it names."""
    address = _ADDRESS.fullmatch(str(path))
    return address is not None and address[2] is not None


def published(path: Path) -> Published:
    """Fetch a published set, or find the copy of it that an earlier run has fetched.

    Raises:
        TraceError: huggingface_hub isn't installed, the address names no set, or it can't be
            reached and there is no copy.
    """
    address = _ADDRESS.fullmatch(str(path))
    if address is None:
        raise TraceError(f"{path}: write it as hf://owner/name, or hf://owner/name@revision")
    name, revision = address[1], address[2]
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise TraceError(
            f"hf://{name}: published sets need pip install 'agentreplay-loadgen[hf]'"
        ) from None
    try:
        folder = Path(
            snapshot_download(
                name,
                repo_type="dataset",
                revision=revision,
                allow_patterns=["*.json", "*.jsonl", "*.jsonl.gz", "*.parquet"],
            )
        )
    except LocalEntryNotFoundError:
        raise TraceError(
            f"hf://{name}: the hub can't be reached and there is no copy here; fetch it where "
            "there is a network, and give its folder as a path"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise TraceError(f"hf://{name}: {str(error).strip().splitlines()[0]}") from None
    return Published(name, folder.name, folder)
