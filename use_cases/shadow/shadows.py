"""Shadows of devices: change what is desired, fold in what is reported, take evidence, delete, and look.

Everything that changes a shadow is a pure function of entities/shadow_changes.py or shadow_reports.py, carried out by
the ``ShadowWriter`` on the newest state. Nothing here asks whether somebody may: the doors do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from ...entities.documents import is_newer
from ...entities.errors import DocumentNewer, IotSphereError, NotFound, Unavailable
from ...entities.merge_patch import same
from ...entities.shadow import SUPERSEDED, Answer, Shadow, ShadowKey, is_shadow_key, shadow_key
from ...entities.shadow_changes import DATABASE, Wanted, adopt, delete, deliver, desire, expire
from ...entities.shadow_reports import Report, report
from ..due import due_pages
from ..ports.clock import Clock
from ..ports.database import Body, Database, Stored
from .writer import SHADOWS, Change, ShadowFormat, ShadowWriter

Places = Mapping[str, tuple[int, int]]
Ends = Callable[[ShadowKey], Awaitable[Places]]
Removed = Callable[[Sequence[ShadowKey]], Awaitable[Mapping[ShadowKey, int]]]

log = structlog.get_logger("iotsphere.shadows")

MAX_NAMED: Final = 100
EXPIRY_PAGE: Final = 500
ABSENT: Final = "absent"


async def nobody(_: Sequence[ShadowKey]) -> Mapping[ShadowKey, int]:
    """No device was ever removed."""
    return {}


class Shadows:
    """All shadows of the database. ``form``: how a document's body stands for a shadow.

    ``ends``: where the log ends now for what a device sends, by partition, as (epoch, offset). ``removed``: which of
    these shadows belong to devices that were removed, and until when (ms) such a device may have sent something: that
    makes none anew, however late it is folded in.
    """

    def __init__(
        self, database: Database, form: ShadowFormat, clock: Clock, ends: Ends, removed: Removed = nobody
    ) -> None:
        self._database = database
        self._form = form
        self._clock = clock
        self._ends = ends
        self._removed = removed
        self.writer = ShadowWriter(database, form, clock)

    async def desire(self, key: ShadowKey, wanted: Wanted) -> Answer:
        """Change what is desired. The same message id gets the same answer, and is carried out once.

        Raises VersionConflict (its facts hold ``version`` and ``state``), MessageRefused (expired, payload_too_large),
        RateLimited and Unavailable.
        """
        return await self.writer(key, partial(_desire, wanted))

    async def desire_many(self, wishes: Sequence[tuple[ShadowKey, Wanted]]) -> list[Answer | IotSphereError]:
        """Change what is desired of many shadows. For each its answer, or what ``desire`` would raise."""
        return await self.writer.many([(key, partial(_desire, wanted)) for key, wanted in wishes])

    async def fold(self, reports: Sequence[tuple[ShadowKey, Report]]) -> list[Answer | IotSphereError]:
        """Fold reports in, those of one shadow in their order, with one write per shadow where they fit into one.

        For each its answer (``applied`` or ``superseded``), or why it was refused: VersionConflict, MessageRefused.
        What a removed device had still sent is superseded by its removal. Raises Unavailable when that is not known;
        folding the same reports again is safe.
        """
        answers = await self._fold(reports, _report_if_there)
        absent = {
            place: answer
            for place, answer in enumerate(answers)
            if not isinstance(answer, IotSphereError) and answer.outcome == ABSENT
        }
        if absent:  # only who would make a shadow anew is asked about, for that is rare
            removed = await self._removed([reports[place][0] for place in absent])
            making = [place for place in absent if reports[place][1].logged_at > removed.get(reports[place][0], -1)]
            answers_of = await self._fold([reports[place] for place in making], _report)
            for place, answer in absent.items():
                answers[place] = answer._replace(outcome=SUPERSEDED)
            for place, made in zip(making, answers_of, strict=True):
                answers[place] = made
        return answers

    async def _fold(
        self,
        reports: Sequence[tuple[ShadowKey, Report]],
        change: Callable[[Report, Shadow, int], tuple[Shadow, Answer]],
    ) -> list[Answer | IotSphereError]:
        answers = await self.writer.many([(key, partial(change, said)) for key, said in reports])
        for answer in answers:
            if isinstance(answer, Unavailable):
                raise answer
        return answers

    async def deliver(self, evidence: Sequence[tuple[ShadowKey, int, str]]) -> None:
        """Take evidence: (shadow, sequence of the delta, ``delivered`` or ``acknowledged``). Raises Unavailable."""
        changes: list[tuple[ShadowKey, Change]] = [
            (key, partial(_deliver, sequence, status)) for key, sequence, status in evidence
        ]
        for answer in await self.writer.many(changes):
            if isinstance(answer, IotSphereError):
                raise answer

    async def delete(self, key: ShadowKey, wanted: Wanted) -> Answer:
        """Delete a shadow, with all that its device has sent so far; its versions go on if it is made anew.

        Raises NotFound, VersionConflict and Unavailable (also when the log is).
        """
        return await self.writer(key, partial(_delete, replace(wanted, behind=await self._ends(key))))

    async def delete_all(self, domain: str, device: str, author: str) -> None:
        """Delete all shadows of a device, where there are any. Repeating it is safe. Raises Unavailable."""
        main = ShadowKey(domain, device)
        await self._delete_present([main], author)
        after = ""
        while page := await self._database.scan(SHADOWS.name, f"{main.text}/", after):
            await self._delete_present([shadow_key(one.key) for one in page if is_shadow_key(one.key)], author)
            after = page[-1].key

    async def _delete_present(self, keys: Sequence[ShadowKey], author: str) -> None:
        for key in await self.get_many(keys):
            try:
                await self.delete(key, Wanted(patch={}, author=author, repeatable=False))
            except NotFound:
                continue  # somebody was quicker

    async def clamp(self, domain: str, partition: str, epoch: int, last: int) -> int:
        """The log ends at a place that shadows know to lie behind: what comes there now was never folded in.

        ``partition``: its channel and number. Returns how many shadows there were. Raises Unavailable.
        """
        count = 0
        after = ""
        while page := await self._database.scan(SHADOWS.name, f"{domain}/", after):
            changes: list[tuple[ShadowKey, Change]] = [
                (shadow_key(one.key), partial(_clamp, partition, (epoch, last)))
                for one in page
                if is_shadow_key(one.key)
            ]
            for answer in await self.writer.many(changes):
                if isinstance(answer, Unavailable):
                    raise answer
                count += not isinstance(answer, IotSphereError) and answer.changed
            after = page[-1].key
        return count

    async def adopt(self, key: ShadowKey, before: Body | None, after: Body | None) -> Answer | None:
        """Make a version of a change that was made with the tools of the database, from the bodies around it.

        None when the change was none of those: it made a version itself, or changed neither what is reported nor what
        is desired. Repeating it makes at most one version more, of an equal state. Raises Unavailable.
        """
        was = None if before is None else self._form.read(key, before)
        now = None if after is None else self._form.read(key, after)
        if not _by_hand(was, now):
            return None
        behind = await self._ends(key) if now is None else {}
        (answer,) = await self.writer.many(
            [(key, partial(_adopt, was, now, behind))]
        )  # never refused for how many wait
        if isinstance(answer, IotSphereError):
            raise answer
        return answer

    async def expire(self) -> int:
        """Let all wishes end whose time has come; returns how many shadows had some. Raises Unavailable."""
        count = 0
        pages = due_pages(self._database, SHADOWS.name, (), self._clock.now(), EXPIRY_PAGE)
        async with aclosing(pages):
            async for page in pages:
                keys = [shadow_key(found.key) for found in page if is_shadow_key(found.key)]
                for key, answer in zip(keys, await self.writer.many([(key, expire) for key in keys]), strict=True):
                    if isinstance(answer, Unavailable):
                        raise answer
                    if isinstance(answer, IotSphereError):  # written there by hand, and no shadow any more
                        log.debug("wish_not_expired", shadow=key.text, code=answer.code, message=answer.message)
                    else:
                        count += answer.changed
        return count

    async def get(self, key: ShadowKey) -> Shadow:
        """A shadow as it is now. Raises NotFound, DocumentNewer and Unavailable."""
        stored = await self._database.get(SHADOWS.name, key.text)
        shadow = self._form.read(key, None if stored is None else stored.body)
        if not shadow.exists:
            raise NotFound
        return shadow

    async def get_many(self, keys: Sequence[ShadowKey]) -> Mapping[ShadowKey, Shadow]:
        """Those of the shadows that exist. Raises Unavailable."""
        stored = await self._database.get_many(SHADOWS.name, [key.text for key in keys])
        return {
            shadow.key: shadow for shadow in self._existing([stored[key.text] for key in keys if key.text in stored])
        }

    async def of_device(self, domain: str, device: str) -> list[Shadow]:
        """A device's shadows, the main one first, then the named ones by name. Raises Unavailable."""
        main = ShadowKey(domain, device)
        stored = await self._database.get(SHADOWS.name, main.text)
        named = await self._database.scan(SHADOWS.name, f"{main.text}/", limit=MAX_NAMED)
        return self._existing((*([stored] if stored else []), *named))

    async def page(self, domain: str, after: str = "", limit: int = 100) -> tuple[list[Shadow], str]:
        """Shadows of a domain in the order of their keys, and what to give as ``after`` for the next page ("": no more).

        Raises Unavailable.
        """
        stored = await self._database.scan(SHADOWS.name, f"{domain}/", after, limit)
        return self._existing(stored), stored[-1].key if len(stored) == limit else ""

    def _existing(self, stored: Sequence[Stored]) -> list[Shadow]:
        """The shadows of documents; those that a newer gateway wrote are passed over, and told in the log."""
        found: list[Shadow] = []
        for one in stored:
            if is_newer(one.body):
                log.warning(
                    "document_passed_over", document=one.key, code=DocumentNewer.code, schema=one.body["schema"]
                )
            elif is_shadow_key(one.key):
                found.append(self._form.read(shadow_key(one.key), one.body))
        return [shadow for shadow in found if shadow.exists]


def _desire(wanted: Wanted, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    return desire(shadow, wanted, at)


def _report(said: Report, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    return report(shadow, said, at)


def _report_if_there(said: Report, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    if not shadow.exists:
        return shadow, Answer(shadow.version, shadow.sequence, changed=False, outcome=ABSENT)
    return report(shadow, said, at)


def _delete(wanted: Wanted, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    return delete(shadow, wanted, at)


def _deliver(sequence: int, status: str, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    after = deliver(shadow, sequence, status, at)
    return after, Answer(after.version, after.sequence, changed=False)


def _clamp(partition: str, last: tuple[int, int], shadow: Shadow, at: int) -> tuple[Shadow, Answer]:  # noqa: ARG001  (the shape of a change)
    def clamped(places: Places) -> Places:
        known = places.get(partition)
        return places if known is None or known[0] != last[0] or known <= last else {**places, partition: last}

    folded, buried = clamped(shadow.folded), clamped(shadow.buried)
    changed = folded is not shadow.folded or buried is not shadow.buried
    after = replace(shadow, folded=folded, buried=buried) if changed else shadow
    return after, Answer(after.version, after.sequence, changed)


def _by_hand(was: Shadow | None, now: Shadow | None) -> bool:
    """Whether a change did not come from here: what comes from here makes a version, or leaves the state as it is."""
    if now is None:
        return was is not None
    if was is None:
        return bool(now.reported or now.desired) and not (now.version and now.updated_at)
    return now.version < was.version or (
        now.version == was.version and not (same(now.reported, was.reported) and same(now.desired, was.desired))
    )


def _adopt(was: Shadow | None, now: Shadow | None, behind: Places, shadow: Shadow, at: int) -> tuple[Shadow, Answer]:
    if was is not None and shadow.version < was.version:
        # It was removed or written anew, and its versions go on all the same.
        if not (shadow.reported or shadow.desired):
            after, _ = delete(was, Wanted(patch={}, author=DATABASE, behind=behind), at) if was.exists else (was, None)
        else:
            after = adopt(was, shadow, at)
    elif now is not None and shadow.version == now.version:
        after = adopt(was, shadow, at)
    elif now is not None and shadow.version == now.version + 1 and shadow.author == DATABASE:
        after = shadow  # the change comes again, after a crash
    else:
        # Somebody has changed it since, without knowing what was written by hand: tell all of it again.
        after = adopt(shadow, shadow, at)
        if after.sequence == shadow.sequence and after.open_leaves():
            after = replace(after, sequence=after.sequence + 1)
    return after, Answer(after.version, after.sequence, changed=after is not shadow)
