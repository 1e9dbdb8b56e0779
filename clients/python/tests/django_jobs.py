"""The tasks of django_check.py."""

from django.tasks import task


@task
def add(a, b):
    return {"sum": a + b}


@task(queue_name="mail", priority=10)
async def greet(name):
    return f"hello, {name}"


@task(takes_context=True)
def attempt(context):
    return context.attempt


@task
def fail():
    raise LookupError("no such thing")


@task(backend="inside")
def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\n")
