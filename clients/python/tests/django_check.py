"""Checks qsidecar.django_tasks while `python -m qsidecar work qsidecar.django_tasks:app` runs:
django_check.py FOLDER.

The queue default keeps its jobs and has one attempt. The queue mail keeps none.
"""

import os
import sys
from datetime import timedelta

import django
from django.db import transaction
from django.utils import timezone
from support import eventually

django.setup()

from django.tasks import TaskResultStatus  # noqa: E402
from django.tasks.exceptions import TaskResultDoesNotExist  # noqa: E402

import django_jobs  # noqa: E402


def ended(result):
    """Returns the result once it is finished."""

    def finished():
        result.refresh()
        return result.is_finished

    eventually(finished, f"{result.id} is finished")
    return result


def main(folder):
    added = django_jobs.add.enqueue(1, b=2)
    assert added.status == TaskResultStatus.READY and added.args == [1] and added.kwargs == {"b": 2}, added
    ended(added)
    assert added.return_value == {"sum": 3} and added.attempts == 1, added
    assert added.enqueued_at <= added.finished_at <= timezone.now() + timedelta(minutes=1), added
    assert django_jobs.add.get_result(added.id).return_value == {"sum": 3}
    assert ended(django_jobs.attempt.enqueue()).return_value == 1

    failed = ended(django_jobs.fail.enqueue())
    assert failed.status == TaskResultStatus.FAILED, failed
    assert failed.errors[0].exception_class is LookupError and "no such thing" in failed.errors[0].traceback, failed.errors

    later = django_jobs.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 1)
    later.refresh()
    assert later.status == TaskResultStatus.READY and not later.is_finished, later

    def deleted():
        try:
            greeted.refresh()
        except TaskResultDoesNotExist:
            return True

    greeted = django_jobs.greet.enqueue("Ada")  # in a queue that keeps no jobs
    eventually(deleted, "the greeting is done and deleted")

    path = os.path.join(folder, "notes")
    try:
        with transaction.atomic():
            django_jobs.note.enqueue(path, "never was")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        django_jobs.note.enqueue(path, "committed")
    eventually(lambda: os.path.exists(path) and open(path).read(), "the committed task is done")
    assert open(path).read() == "committed\n"
    print("all well on Django", django.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
