"""django.tasks (Django 6.0 and newer) on qsidecar.

    TASKS = {"default": {"BACKEND": "qsidecar.django_tasks.QsidecarBackend", "QUEUES": ["default", "mail"]}}

OPTIONS are those of qsidecar.Client (socket, worker, request_timeout), and `database`: the alias of a Django
database, which must be the sidecar's. With it, enqueue inserts the job in the database's open transaction, so that
the job exists if that commits. Without it, the sidecar stores the job at once (in a transaction, use
transaction.on_commit).

    DJANGO_SETTINGS_MODULE=site.settings python -m qsidecar work qsidecar.django_tasks:app

runs the tasks. A task that raises is tried again after its queue's back-off, and is FAILED when it has no attempts
left. Results are available for as long as the sidecar's config keeps the queue's jobs (`retention`), but not with
`database`.
"""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

import django
from django.db import close_old_connections, connections
from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import TaskError
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued, task_finished, task_started
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from . import sql
from ._handlers import describe
from .client import Client
from .job import Job
from .worker import App

_STATUS = {
    "ready": TaskResultStatus.READY,
    "scheduled": TaskResultStatus.READY,
    "claimed": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
}


class QsidecarBackend(BaseTaskBackend):
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.database: Optional[str] = options.pop("database", None)
        self.supports_get_result = self.database is None
        self.client = Client(**options)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        payload = {"task": task.module_path, "args": args, "kwargs": kwargs}
        options = {"priority": task.priority, "run_at": task.run_after}
        if task.run_after is not None and task.run_after.tzinfo is None:  # with USE_TZ = False: the system's time zone
            options["run_at"] = task.run_after.astimezone()
        if self.database is not None:
            with connections[self.database].cursor() as cursor:
                sql.enqueue(cursor, task.queue_name, payload, **options)
            name = str(uuid.uuid4())  # no one reads the job's own id from the database
        else:
            name = _name(task.queue_name, self.client.enqueue(task.queue_name, payload, **options).id)
        result = _result(self, task, name, args, kwargs, TaskResultStatus.READY, enqueued_at=datetime.now(timezone.utc))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        if self.database is not None:
            return super().get_result(result_id)
        queue, _, job_id = result_id.partition("~")
        found = self.client.request("peek", queue=queue, ids=[job_id])["jobs"] if job_id else []
        if not found:
            raise TaskResultDoesNotExist(result_id)
        job = found[0]
        call = json.loads(job["payload"])
        status = _STATUS.get(job["state"], TaskResultStatus.READY)
        result = _result(
            self,
            import_string(call["task"]),
            result_id,
            call["args"],
            call["kwargs"],
            status,
            enqueued_at=_instant(job.get("enqueued_at")),
            started_at=_instant(job.get("claimed_at")),
            last_attempted_at=_instant(job.get("claimed_at")),
            finished_at=_instant(job.get("finished_at")),
            errors=[_error(e) for e in job.get("errors") or []],
            worker_ids=[job.get("worker") or "qsidecar"] * job.get("attempt", 0),
        )
        if status == TaskResultStatus.SUCCESSFUL and job.get("result"):
            object.__setattr__(result, "_return_value", json.loads(job["result"]))
        return result

    def perform(self, job: Job) -> Any:
        """Runs the task of a job."""
        call = job.payload
        task = import_string(call["task"])
        now = datetime.now(timezone.utc)
        result = _result(
            self,
            task,
            _name(job.queue, job.id),
            call["args"],
            call["kwargs"],
            TaskResultStatus.RUNNING,
            enqueued_at=_instant(job.enqueued_at),
            started_at=now,
            last_attempted_at=now,
            worker_ids=["qsidecar"] * job.attempt,
        )
        task_started.send(type(self), task_result=result)
        context = [TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = normalize_json(task.call(*context, *call["args"], **call["kwargs"]))
        except BaseException as e:
            self._finished(result, TaskResultStatus.FAILED)
            result.errors.append(_error({"cause": "nacked", "message": describe(e)}))
            task_finished.send(type(self), task_result=result)
            raise
        self._finished(result, TaskResultStatus.SUCCESSFUL)
        object.__setattr__(result, "_return_value", value)
        task_finished.send(type(self), task_result=result)
        return value

    def _finished(self, result: Any, status: Any) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "finished_at", datetime.now(timezone.utc))


def worker(alias: str = "default") -> App:
    """Returns an app that runs the tasks of a backend's queues."""
    backend = task_backends[alias]
    app = App(backend.client)
    for queue in backend.queues:
        app.job(queue, result=True)(backend.perform)
    app.before_job(lambda job: close_old_connections())
    app.after_job(lambda job, error: close_old_connections())
    return app


def __getattr__(name: str) -> Any:
    """app: the worker of the default backend, created at its first use."""
    if name != "app":
        raise AttributeError(name)
    django.setup()
    return worker()


def _name(queue: str, job_id: str) -> str:
    """Returns a result's id. A queue's name can't contain a tilde."""
    return f"{queue}~{job_id}"


def _instant(millis: Optional[int]) -> Optional[datetime]:
    return None if millis is None else datetime.fromtimestamp(millis / 1000, timezone.utc)


def _error(failure: Dict[str, Any]) -> Any:
    """Returns a failed attempt. The message of a nack starts with the class of the exception."""
    text = failure.get("message") or failure["cause"]
    path = "qsidecar.Error"
    if failure["cause"] == "nacked":
        path = text.partition("\n")[0].partition(":")[0]
        path = path if "." in path else f"builtins.{path}"
    return TaskError(exception_class_path=path, traceback=text)


def _result(backend: Any, task: Any, name: str, args: List[Any], kwargs: Dict[str, Any], status: Any, **more: Any) -> Any:
    fields: Dict[str, Any] = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    fields.update({"errors": [], "worker_ids": [], **more})
    return TaskResult(task=task, id=name, status=status, args=args, kwargs=kwargs, backend=backend.alias, **fields)
