"""Runs the code of the package's README unchanged. sql_check.py runs the block about transactions."""

import contextlib
import os
import re
import sqlite3
import subprocess
import unittest

from support import PYTHON, Case

HERE = os.path.dirname(os.path.abspath(__file__))
README = os.path.join(HERE, "..", "README.md")


def snippets():
    """Returns the blocks of Python, each with its heading."""
    with open(README, encoding="utf-8") as page:
        parts = re.split(r"^#+ (.*)$", page.read(), flags=re.M)
    found = {}
    for heading, text in zip(parts[1::2], parts[2::2]):
        for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)):
            found[heading if i == 0 else f"{heading} {i + 1}"] = block
    return found


def run(name, **names):
    """Executes a block in a new module with these names."""
    names["__name__"] = "readme"
    exec(compile(snippets()[name], f"README.md, {name}", "exec"), names)
    return names


class Readme(Case):
    def test_all_snippets_are_tested(self):
        self.assertEqual(
            list(snippets()),
            ["qsidecar for Python", "A worker", "A client", "asyncio", "asyncio 2", "In a transaction of one's own", "Unit tests", "Django"],
        )

    def test_example(self):
        printed = []
        program = snippets()["qsidecar for Python"]
        self.assertTrue(program.endswith('app.run(concurrency=8)                              # until SIGTERM\n'))
        names = {"print": lambda *texts, **how: printed.append(texts)}
        exec(program.replace("app.run(concurrency=8) ", "app.run(concurrency=8, drain=True) "), names)
        self.assertEqual(printed, [("hello,", "Ada")])

    def test_worker(self):
        names = run("A worker")
        app = names["app"]
        self.addCleanup(app.client.close)
        big = app.enqueue("resize", {"size": 10_001}, max_attempts=1).id
        small = app.enqueue("resize", {"size": 10}).id
        app.run(concurrency=2, drain=True)
        self.assertEqual(self.one("publish").payload, {"picture": small})
        self.assertEqual(self.peek(big, "resize")["errors"][0]["message"], "the disk is full")

    def test_client(self):
        printed = []
        run("A client", print=printed.append)
        self.assertEqual(printed[0], b"\x89PNG")
        self.assertEqual(self.one("audit").payload, ["ada", 17])
        self.client.request("purge", queue="mail", state="scheduled")

    def test_asyncio(self):
        printed = []
        run("asyncio", print=printed.append)
        self.assertEqual(printed, [{"to": "ada"}])

    def test_asyncio_worker(self):
        app = run("asyncio 2")["app"]
        self.addCleanup(app.client.close)
        app.enqueue("import", {"parts": [1, 2]})
        app.run(concurrency=200, drain=True)
        self.assertEqual([self.one("part").payload for _ in range(2)], [1, 2])

    def test_unit_tests(self):
        import qsidecar

        run("Unit tests", sign_up=lambda name: qsidecar.Client(socket="/nowhere/s").enqueue("mail", {"to": name}))

    def test_django(self):
        self.assertIn("default", run("Django")["TASKS"])

    def test_modules_are_imported_with_the_package(self):
        for text in ("qsidecar.sql.enqueue", "qsidecar.testing.inline"):
            with self.subTest(text):
                subprocess.run([*PYTHON, "-c", f"import qsidecar; {text}"], check=True)


def check_transaction(connection, execute):
    """Runs the block about transactions, on a connection whose cursors possibly aren't context
    managers.
    """
    execute("CREATE TABLE orders (item varchar(20))")
    connection.commit()
    shown = connection
    if isinstance(connection, sqlite3.Connection):

        class Closing:
            commit = connection.commit

            def cursor(self):
                return contextlib.closing(connection.cursor())

        shown = Closing()
    run("In a transaction of one's own", connection=shown)


if __name__ == "__main__":
    unittest.main()
