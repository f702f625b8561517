"""Where the configuration files lie."""

from pathlib import Path

import ray_diloco


def conf_dir() -> Path:
    """Absolute path of ``conf``: inside the package of a wheel, else beside it in a checkout."""
    package = Path(ray_diloco.__file__).resolve().parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
