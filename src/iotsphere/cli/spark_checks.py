"""What can be wrong with a run of a job, said before Spark takes its time to start."""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..entities.errors import RequestInvalid

if TYPE_CHECKING:
    from ..containers.spark import Outlets
    from ..drivers.spark.runner import Plan
    from .spark import Asked

MASTERS: Final = ("local", "spark://", "yarn", "k8s://")
# An address as a path: of its two slashes, one is left.
ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)/+(.*)")


def check_folders(asked: Asked) -> None:
    """Refuse addresses where a folder belongs: they would be folders of such a name. Raises RequestInvalid."""
    for option, folder in (("--output", asked.output), ("--checkpoint", asked.checkpoint)):
        if folder is not None and (found := ADDRESS.fullmatch(str(folder))):
            raise RequestInvalid(
                f"{option} {found[1]}//{found[2]} is an address, and results are written to folders alone: name a folder "
                "of this machine, or mount the store and name the folder where it is"
            )


def check(plan: Plan, asked: Asked, outlets: Outlets) -> int | None:
    """Look at places, options and the log. Raises RequestInvalid, UnknownDomain, LogUnavailable, DatabaseUnavailable.

    How many messages the run begins with; None when its checkpoint knows.
    """
    from ..drivers.spark.checkpoints import free, generation
    from ..drivers.spark.places import offsets
    from ..drivers.spark.progress import distance
    from ..drivers.spark.sinks.delta import DeltaLake
    from ..drivers.spark.sinks.documents import look
    from ..drivers.spark.source import borders, read_options
    from ..spark import open_ranges

    if not asked.master.startswith(MASTERS):
        raise RequestInvalid(f"--master {asked.master!a} is none of Spark's: write local[*] or spark://HOST:PORT")
    if "spark.master" in asked.conf:
        raise RequestInvalid("spark.master is no setting for --conf: name it with --master")
    wanted = read_options(plan.source)
    if wanted.form.name != "readings":
        raise RequestInvalid(f"a job takes readings, not {wanted.form.name}: leave rows and channel out of --source")
    if plan.checkpoint is not None and wanted.end != "latest":
        raise RequestInvalid("--to says where a single pass ends: leave it out, or --follow and --checkpoint")
    if plan.migrate and plan.checkpoint is None:
        raise RequestInvalid("--migrate is about a checkpoint: add --checkpoint FOLDER or --follow, or leave it out")
    if asked.output is not None and not plan.job.output:
        raise RequestInvalid(f"{plan.job.name} writes no files: leave --output out")
    if asked.database is not None and not plan.job.documents:
        raise RequestInvalid(f"{plan.job.name} keeps no documents: leave --database out")
    if plan.job.documents:
        look(outlets.database)
    if plan.job.output:
        writable(outlets.output, "--output")
    if plan.job.maintain is not None:  # what it keeps there is a table
        DeltaLake(outlets.output).look()
    if plan.checkpoint is not None:
        writable(plan.checkpoint, "--checkpoint")
        free(plan.checkpoint)
    if plan.checkpoint is None or generation(plan.checkpoint) is None:  # else its own place counts
        return distance(*map(offsets, borders(open_ranges, wanted)))
    return None


def writable(folder: Path, option: str) -> None:
    """Make sure that a folder can be made and written, and leave nothing behind. Raises RequestInvalid."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestInvalid(
            f"nothing can be written in {folder} ({error.strerror}): name another folder with {option}, or mend this one"
        ) from error
    finally:
        for place in missing:
            with suppress(OSError):  # it was not made, or somebody uses it already
                place.rmdir()
