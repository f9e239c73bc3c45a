"""What is told of a shadow: which messages, in which order, and how large; and what its document looks like."""

from __future__ import annotations

import json
from typing import Any

from iotsphere.adapters.shadow.body import ShadowDocument, history_body, told, versions
from iotsphere.adapters.shadow.messages import document_payload, tell
from iotsphere.entities.message import MAX_PAYLOAD_BYTES
from iotsphere.entities.shadow import Mark, Shadow, ShadowKey, Wish, json_size
from iotsphere.entities.shadow_changes import Wanted, delete, deliver, desire
from iotsphere.entities.shadow_reports import Report, report

KEY = ShadowKey("iotsphere", "pump-7", "radio")
NEW = Shadow(key=KEY)
AT = 1_767_225_600_000


def wished(shadow: Shadow, patch: dict[str, Any], **facts: Any) -> Shadow:
    return desire(shadow, Wanted(patch=patch, author="ui", **facts), AT)[0]


def said(shadow: Shadow, patch: dict[str, Any]) -> Shadow:
    return report(shadow, Report(patch=patch, at=AT + 5, author="pump-7"), AT + 9)[0]


def test_a_wish_is_told_as_desired_then_delta_then_document() -> None:
    first = wished(NEW, {"interval": 5, "led": True}, message_id="m1")
    second = wished(first, {"interval": 9, "led": None}, expires_at=AT + 60_000)
    assert tell(first, second) == [
        ("desired", {"desired": {"interval": 9}, "patch": {"interval": 9, "led": None}, "version": 2, "author": "ui"}),
        ("delta", {"delta": {"interval": 9}, "sequence": 2, "version": 2, "author": "ui"}),
        (
            "document",
            {
                "reported": {},
                "desired": {"interval": 9},
                "delta": {"interval": 9},
                "version": 2,
                "sequence": 2,
                "author": "ui",
                "cause": None,
                "updatedAt": "2026-01-01T00:00:00.000Z",
                "wishes": {
                    "/interval": {
                        "status": "pending",
                        "since": "2026-01-01T00:00:00.000Z",
                        "version": 2,
                        "author": "ui",
                        "sequence": 2,
                        "expiresAt": "2026-01-01T00:01:00.000Z",
                    }
                },
                "superseded": {
                    "/interval": {
                        "status": "superseded",
                        "since": "2026-01-01T00:00:00.000Z",
                        "version": 1,
                        "author": "ui",
                        "sequence": 1,
                    },
                    "/led": {
                        "status": "superseded",
                        "since": "2026-01-01T00:00:00.000Z",
                        "version": 1,
                        "author": "ui",
                        "sequence": 1,
                    },
                },
                "marks": {},
            },
        ),
    ]


def test_b22_a_delta_is_told_only_when_it_is_another_one_and_its_end_once() -> None:
    open_ = wished(NEW, {"interval": 5})
    elsewhere = said(open_, {"other": 1})
    assert [kind for kind, _ in tell(open_, elsewhere)] == ["document"]
    closed = said(elsewhere, {"interval": 5})
    messages = tell(elsewhere, closed)
    assert messages[0] == ("delta", {"delta": {}, "sequence": 2, "version": 3, "author": "pump-7"})
    assert [kind for kind, _ in messages] == ["delta", "document"]
    assert messages[1][1]["marks"]["/interval"] == {"at": "2026-01-01T00:00:00.005Z", "version": 3, "author": "pump-7"}
    assert [kind for kind, _ in tell(closed, said(closed, {"other": 2}))] == ["document"]


def test_evidence_is_told_by_the_document_alone_and_memory_not_at_all() -> None:
    shadow = wished(NEW, {"interval": 5})
    ((kind, payload),) = tell(shadow, deliver(shadow, 1, "acknowledged", AT))
    assert (kind, payload["version"], payload["wishes"]["/interval"]["status"]) == ("document", 1, "acknowledged")
    assert tell(shadow, wished(shadow, {"interval": 5}, message_id="again")) == []


def test_a_deletion_is_told() -> None:
    shadow = said(wished(NEW, {"interval": 5}), {"r": 1})
    gone, _ = delete(shadow, Wanted(patch={}, author="ui", message_id="m9"), AT)
    messages = dict(tell(shadow, gone))
    assert messages["desired"] == {"desired": {}, "patch": {"interval": None}, "version": 3, "author": "ui"}
    assert messages["delta"] == {"delta": {}, "sequence": 2, "version": 3, "author": "ui"}
    assert messages["document"]["deleted"] is True
    assert messages["document"]["cause"] == "m9"


def test_a_document_never_outgrows_a_message() -> None:
    def nest(value: int) -> dict[str, Any]:
        return {"k" * 120: {str(number): value for number in range(480)}}

    shadow = said(wished(wished(NEW, nest(1)), nest(2)), nest(3))
    payload = document_payload(shadow)
    assert 200_000 < json_size(payload) <= MAX_PAYLOAD_BYTES
    assert "leftOut" not in payload
    payload = document_payload(wished(shadow, nest(4)))
    assert json_size(payload) <= MAX_PAYLOAD_BYTES
    assert (len(payload["wishes"]), payload["leftOut"]) == (480, ["marks"])


GOLDEN = {
    "schema": 1,
    "domain": "iotsphere",
    "device": "pump-7",
    "name": "radio",
    "version": 2,
    "deltaSequence": 1,
    "reported": {"rssi": -70},
    "desired": {"interval": 5},
    "marks": {"/rssi": [1767225600005, 2, "pump-7"]},
    "wishes": {
        "/interval": {
            "status": "pending", "since": 1767225600000, "version": 1, "author": "ui", "sequence": 1,
            "expiresAt": 1767225660000,
        }
    },
    "superseded": {},
    "author": "pump-7",
    "cause": "",
    "createdAt": 1767225600000,
    "updatedAt": 1767225600009,
    "deleted": False,
    "deletedAt": 0,
    "recent": [["m1", 1, 1, True]],
    "due": 1767225660000,
}  # fmt: skip


def test_the_document_is_made_to_be_read_by_people() -> None:
    shadow = said(wished(NEW, {"interval": 5}, message_id="m1", expires_at=AT + 60_000), {"rssi": -70})
    form = ShadowDocument()
    assert form.write(shadow) == GOLDEN
    assert form.read(KEY, json.loads(json.dumps(GOLDEN))) == shadow
    assert told(GOLDEN).keys() == GOLDEN.keys() - {"recent", "due"}
    kept = history_body(KEY, GOLDEN, 99)
    assert (kept["shadow"], kept["at"], kept["expires"]) == ("iotsphere/pump-7/radio", 1767225600009, 99)
    assert form.read(KEY, kept) == form.read(KEY, told(GOLDEN))


def test_whatever_people_write_can_be_read() -> None:
    body = {
        "version": 3.0, "deltaSequence": -1, "reported": [1], "desired": {"a": 1}, "updatedAt": True, "deleted": "no",
        "marks": {"/a": [1.0, 2, "x"], "/b": [1], "/c": "x"}, "wishes": {"/a": {"status": "pending"}, "/b": {}, "/c": 1},
        "recent": [["m", 1, 1, True], "x", [1]], "folded": {"shadow/0": [1, 2], "x": 1}, "author": 5,
    }  # fmt: skip
    assert ShadowDocument().read(KEY, body) == Shadow(
        key=KEY,
        version=3,
        desired={"a": 1},
        marks={"/a": Mark(1, 2, "x")},
        wishes={"/a": Wish("pending", 0, 0, "", 0)},
        recent=(("m", desire(NEW, Wanted(patch={"a": 1}, author=""), 1)[1]),),
        folded={"shadow/0": (1, 2)},
    )


def test_only_the_last_version_is_told_where_the_state_before_is_not_known() -> None:
    form = ShadowDocument()
    first = wished(NEW, {"a": 1})
    second, third = wished(first, {"b": 2}), wished(first, {"b": 2, "c": 3})
    last = wished(second, {"c": 3})
    assert third.desired == last.desired
    body = form.write(last, [form.step(first, second)])
    assert [one["version"] for one in versions(form.write(first), body)] == [2, 3]
    assert [one["version"] for one in versions(None, body)] == [3]
    assert versions(None, {"by": "hand"}) == [{"by": "hand"}]
