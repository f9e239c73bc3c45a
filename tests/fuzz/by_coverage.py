"""Coverage-guided fuzzing: `python -m tests.fuzz.by_coverage FOLDER [-max_total_time=600]`.

FOLDER keeps the inputs that reached something new, so that the next run goes on from them. Other options are libFuzzer's.
An input that breaks a rule is written to the current folder as `crash-…`; give its path instead of FOLDER to run it again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

# Only the product's code counts as coverage; so it is imported here, and nothing of the tests' before.
with atheris.instrument_imports(include=["iotsphere.adapters.mqtt"]):
    from tests.fuzz import target
    from tests.fuzz.seeds import conversations


def main(words: list[str]) -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    places = [word for word in words[1:] if not word.startswith("-")]
    if places and not Path(places[0]).is_file():
        folder = Path(places[0])
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(conversations()):
            (folder / f"seed-{number:02}").write_bytes(seed)
    options = ["-max_len=512", "-timeout=60", "-rss_limit_mb=512"]
    atheris.Setup([words[0], *options, *words[1:]], target.drive)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
