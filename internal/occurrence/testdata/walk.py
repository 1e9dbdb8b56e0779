"""Prints when cron expressions run, by a walk over each minute with zoneinfo.

It is an independent implementation of package occurrence: it never computes a next time. The arguments are JSON: a list of
[zone, first UTC minute, last UTC minute], and a list of expressions without names.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

LOWEST, HIGHEST = (0, 0, 1, 1, 0), (59, 23, 31, 12, 7)


def values(field, n):
    found = set()
    for part in field.split(","):
        what, _, step = part.partition("/")
        first, _, last = what.partition("-")
        if what == "*":
            first, last = LOWEST[n], HIGHEST[n]
        elif not last:
            last = HIGHEST[n] if step else first
        found.update(range(int(first), int(last) + 1, int(step or 1)))
    return found


class Expression:
    def __init__(self, text):
        fields = text.split()
        self.sets = [values(f, n) for n, f in enumerate(fields)]
        self.any_day, self.any_weekday = fields[2] == "*", fields[4] == "*"
        self.hourly = fields[1] in ("*", "*/1")
        self.interval = fields[0][0] == "*" or fields[1][0] == "*"

    def matches(self, wall):
        minute, hour, day, month, weekday = self.sets
        if wall.minute not in minute or wall.hour not in hour or wall.month not in month:
            return False
        on_day = wall.day in day
        on_weekday = wall.isoweekday() in weekday or (wall.isoweekday() == 7 and 0 in weekday)
        if self.any_day or self.any_weekday:
            return on_day and on_weekday
        return on_day or on_weekday


def walk(zone, first, last, expressions):
    minute, zone = timedelta(minutes=1), ZoneInfo(zone)
    at = datetime.fromisoformat(first).replace(tzinfo=timezone.utc)
    end = datetime.fromisoformat(last).replace(tzinfo=timezone.utc)
    shown = {}  # wall times that the clock has shown
    before = (at - minute).astimezone(zone).utcoffset()
    for back in range(1, 180):
        shown[(at - back * minute).astimezone(zone).replace(tzinfo=None, fold=0)] = True
    while at <= end:
        local = at.astimezone(zone)
        wall = local.replace(tzinfo=None, fold=0)
        skipped = []
        if local.utcoffset() > before:
            skipped = [wall - n * minute for n in range(1, (local.utcoffset() - before) // minute + 1)]
        for text, e in expressions.items():
            runs = e.matches(wall) and (e.interval or wall not in shown)
            if runs or not e.hourly and any(e.matches(w) for w in skipped):
                print(zone.key, at.strftime("%Y-%m-%dT%H:%M:00Z"), text, sep="|")
        shown[wall] = True
        before = local.utcoffset()
        at += minute


if __name__ == "__main__":
    expressions = {text: Expression(text) for text in json.loads(sys.argv[2])}
    for zone, first, last in json.loads(sys.argv[1]):
        walk(zone, first, last, expressions)
