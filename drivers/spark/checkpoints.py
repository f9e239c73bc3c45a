"""Checkpoints that say what they were made by: an incompatible change is refused in words, and has a way out.

A checkpoint is a folder with one generation after the other in it, `1-v1`, `2-v2` …: the folder that Spark keeps its
offsets and state in, and `iotsphere.json`, which says which job and options it belongs to. The name of the application,
by which sinks know what they have got, lies there too and so is as old as the offsets: whoever deletes a checkpoint
gets a new one, and no sink skips what it is given anew.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from time import sleep
from typing import IO, Any, Final, NamedTuple
from uuid import uuid4

from ...entities.errors import Conflict, RequestInvalid, Unavailable
from ...use_cases.ports.log_ranges import LogRanges
from .places import Offsets, beginning, offsets, places

NOTE: Final = "iotsphere.json"
LOCK: Final = "lock"
TRIES: Final = 50
PAUSE_S: Final = 0.02


class Identity(NamedTuple):
    """What a checkpoint belongs to. ``options``: those that state depends on; ``source``: channel, domain and rows."""

    job: str
    version: int
    options: Mapping[str, Any]
    source: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Note:
    """What lies in `iotsphere.json`. ``start``: offsets to begin with, where this generation goes on after another.

    ``since``: the time (ms) that the job was first asked to begin with, None for the log's beginning and for offsets.
    """

    job: str
    version: int
    options: Mapping[str, Any]
    options_hash: str
    source: Mapping[str, str]
    application: str
    start: Offsets | None = None
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An open checkpoint. ``location``: for Spark. ``start``: where a new generation begins, None for the caller's.

    ``since``: what the note says of it.
    """

    location: Path
    application: str
    start: Offsets | None
    since: int | None = None

    @property
    def begun(self) -> bool:
        """Whether Spark has planned a batch here already, so that its place counts and no other."""
        return _latest(self.location / "offsets") is not None


@contextmanager
def opened(
    folder: Path, identity: Identity, migrate: Callable[[Path], Offsets] | None = None, since: int | None = None
) -> Iterator[Checkpoint]:
    """The checkpoint of a folder, made where there is none; nobody else can use it meanwhile.

    ``migrate``: what to begin a new generation with when the old one does not fit; None to refuse. ``since``: the time
    that a new checkpoint begins with. Raises Conflict for
    a checkpoint of other options, version or job, and Unavailable while another process uses it.
    """
    with _locked(folder):
        known = generation(folder)
        if known is None:
            note = replace(_new(identity, None), since=since)
            location = folder / f"{_next(folder)}-v{identity.version}"
        else:
            location, note = known
            if (why := _difference(note, identity)) is not None:
                if migrate is None:
                    raise _refusal(folder, why)
                note = _new(identity, migrate(location))
                location = folder / f"{_next(folder)}-v{identity.version}"
        _write(location, note)
        yield Checkpoint(location, note.application, note.start, note.since)


def generation(folder: Path) -> tuple[Path, Note] | None:
    """The newest generation of a checkpoint. Raises RequestInvalid for a folder that is something else."""
    if not folder.is_dir():
        return None
    found = {
        int(path.name.partition("-")[0]): path for path in folder.glob("[0-9]*-v[0-9]*") if (path / NOTE).is_file()
    }
    if not found:
        if any(path.name not in (LOCK,) for path in folder.iterdir()):
            raise RequestInvalid(f"{folder} holds something, but no checkpoint of a job: name an empty folder")
        return None
    location = found[max(found)]
    try:
        return location, Note(**json.loads((location / NOTE).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RequestInvalid(f"{location / NOTE} cannot be read ({error}): restore it, or delete {location}") from error


def is_used(folder: Path) -> bool:
    """Tell whether a process uses a checkpoint now."""
    try:
        with (folder / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def free(folder: Path) -> None:
    """Raise Unavailable while a process uses a checkpoint."""
    if is_used(folder):
        raise _in_use(folder)


def recorded(location: Path) -> Offsets | None:
    """The end of the last batch that was committed in a generation: up to there everything is in the sinks."""
    number = _latest(location / "commits")
    if number is None:
        note = Note(**json.loads((location / NOTE).read_text(encoding="utf-8")))
        return note.start
    return _offsets_of(location, number)


def planned(location: Path, number: int) -> Offsets | None:
    """Where a batch of a generation ends; None when it was not planned, or is forgotten."""
    return _offsets_of(location, number) if (location / "offsets" / str(number)).is_file() else None


def rewound(ranges: LogRanges, found: Offsets, seconds: float) -> Offsets:
    """Offsets so much earlier, by the time at which the log took what lies there: whatever was open then is read whole."""
    start = {}
    for partition, place in places(found).items():
        first = beginning(ranges, partition)
        moment = None
        if place.offset > first.offset:
            before = place._replace(offset=place.offset - 1)
            times = [entry.appended_at for piece in ranges.read(partition, before, place) for entry in piece.entries]
            moment = times[-1] if times else None
        earlier = first if moment is None else ranges.at(partition, moment - round(seconds * 1000))
        start[partition] = earlier if earlier.offset < place.offset else place
    return offsets(start)


def _new(identity: Identity, start: Offsets | None) -> Note:
    return Note(
        job=identity.job,
        version=identity.version,
        options=dict(identity.options),
        options_hash=_hash(identity),
        source=dict(identity.source),
        application=f"{identity.job}-{uuid4()}",
        start=start,
    )


def _hash(identity: Identity) -> str:
    text = json.dumps([identity.options, identity.source], sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:16]


def _difference(note: Note, identity: Identity) -> str | None:
    """What does not fit, in words."""
    if note.job != identity.job:
        return f"it belongs to the job {note.job}, not {identity.job}"
    if note.version != identity.version:
        return f"it was made by version {note.version} of {note.job}, and this is version {identity.version}"
    if note.options_hash == _hash(identity):
        return None
    before, now = {**note.options, **note.source}, {**identity.options, **identity.source}
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    return "; ".join(f"{name} was {before.get(name)!r} and is {now.get(name)!r} now" for name in changed)


def _refusal(folder: Path, why: str) -> Conflict:
    return Conflict(
        f"the checkpoint {folder} does not fit: {why}. Nothing was read. Run it as before, name another checkpoint, or "
        "add --migrate: a new generation then begins with the recorded offsets, far enough back for all that was open"
    )


def _offsets_of(location: Path, number: int) -> Offsets:
    # Spark's offset log: a version, one line about the batch, then one line for each source.
    lines = (location / "offsets" / str(number)).read_text(encoding="utf-8").splitlines()
    found: Offsets = json.loads(lines[2])
    return found


def _latest(folder: Path) -> int | None:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdigit()), default=None)


def _next(folder: Path) -> int:
    return 1 + max((int(path.name.partition("-")[0]) for path in folder.glob("[0-9]*-v[0-9]*")), default=0)


def _write(location: Path, note: Note) -> None:
    """Write the note aside and rename it, so that there is none or a whole one, and it is on the disk before Spark's."""
    location.mkdir(parents=True, exist_ok=True)
    path = location / NOTE
    if path.exists():
        return
    draft = location / f".{NOTE}.{os.getpid()}"
    with draft.open("w", encoding="utf-8") as file:
        json.dump(asdict(note), file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK).open("a+b") as lock:
            _take(lock)
            yield
    except BlockingIOError as error:
        raise _in_use(folder) from error


def _take(lock: IO[bytes]) -> None:
    """Take the lock, also where somebody just looks who has it: a look holds it for a moment. Raises BlockingIOError."""
    for patience in reversed(range(TRIES)):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not patience:
                raise
            sleep(PAUSE_S)
        else:
            return


def _in_use(folder: Path) -> Unavailable:
    return Unavailable(f"the checkpoint {folder} is used by another process: stop it first, or name another checkpoint")
