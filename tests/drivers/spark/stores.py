"""Results as others read them: from MongoDB with its client, from the embedded file with SQLite's."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pymongo


@dataclass(frozen=True, slots=True)
class Mongo:
    database: str

    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        with pymongo.MongoClient[dict[str, Any]](self.database, tz_aware=True) as client:
            found = list(client.get_default_database()[collection].find())
        return {one.pop("_id"): {name: _plain(value) for name, value in one.items()} for one in found}


@dataclass(frozen=True, slots=True)
class Embedded:
    database: str

    def read(self, collection: str) -> dict[str, dict[str, Any]]:
        path = Path(self.database) / "analytics.db"
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute("SELECT key, body FROM documents WHERE collection = ?", (collection,)).fetchall()
        finally:
            connection.close()
        return {key: json.loads(body) for key, body in rows}


def _plain(value: Any) -> Any:
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
