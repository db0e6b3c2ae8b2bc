"""When a scheduled training is due."""

from datetime import UTC, datetime, timedelta

DAY_HOURS = 24.0


def find_next_time(since: float, last_at: float | None, hours: float, at: str | None) -> float:
    """Return when the next training is due, in seconds since 1970.

    hours: between two trainings, whole days if `at` is a time of day in UTC, HH:MM
    since: when the schedule was set; last_at: when the last training was started
    """
    if at is None:
        return (since if last_at is None else last_at) + 3600 * hours
    earliest = since if last_at is None else last_at + 3600 * (hours - DAY_HOURS)
    moment = datetime.fromtimestamp(earliest, UTC)
    hour, minute = (int(part) for part in at.split(":"))
    due = moment.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return (due if due > moment else due + timedelta(days=1)).timestamp()
