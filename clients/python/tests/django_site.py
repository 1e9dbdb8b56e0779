"""The settings and the tasks of django_check.py."""

import os


SECRET_KEY = "a test's, no secret"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ.get("SITE_FILE"), "OPTIONS": {"timeout": 60}}}
BACKEND = "qsidecar.django_tasks.QsidecarBackend"
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": {"request_timeout": 60}},
    "inside": {"BACKEND": BACKEND, "QUEUES": ["default"], "OPTIONS": {"database": "default"}},
}
