"""One process of the Python client, or of psycopg, that processes a queue until it is empty:
loop.py sidecar|driver N, or loop.py worker "" or loop.py worker async.

It claims and acks N jobs at a time. It prints the number of jobs and the seconds. The worker of the client does that
for each line of its input: how many jobs it runs at once, and behind or sync. With async, the jobs are coroutines.
"""

import os
import sys
import time

CLAIM = """WITH n AS MATERIALIZED (SELECT id FROM rival WHERE queue = 'q' AND state = 0 ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
    UPDATE rival r SET state = 1 FROM n WHERE r.id = n.id RETURNING r.id, r.payload"""


def by_sidecar(n):
    import qsidecar

    with qsidecar.Client(codec=os.environ["QSIDECAR_CODEC"]) as client:
        client.ping()
        began, done = time.perf_counter(), 0
        while True:
            jobs = client.claim("clients", max=n)
            if not jobs:
                return done, time.perf_counter() - began
            if n == 1:
                jobs[0].ack()
            else:
                assert client.ack_many(jobs) == []
            done += len(jobs)


def by_driver(n):
    import psycopg

    with psycopg.connect(os.environ["BENCH_DATABASE"], autocommit=True) as connection, connection.cursor() as cursor:
        began, done = time.perf_counter(), 0
        while True:
            jobs = cursor.execute(CLAIM, (n,)).fetchall()
            if not jobs:
                return done, time.perf_counter() - began
            if n == 1:
                cursor.execute("DELETE FROM rival WHERE id = %s", (jobs[0][0],))
            else:
                cursor.execute("DELETE FROM rival WHERE id = ANY(%s)", ([job[0] for job in jobs],))
            done += len(jobs)


def by_worker(kind):
    import qsidecar

    for line in sys.stdin:
        threads, ack = line.split()
        app, times = qsidecar.App(), []

        def note(job, times=times):
            times.append(time.perf_counter())

        async def note_async(job, times=times):
            times.append(time.perf_counter())

        app.job("clients")(note_async if kind == "async" else note)
        app.run(int(threads), drain=True, ack=ack)
        app.client.close()
        print(len(times), max(times) - min(times), flush=True)


if sys.argv[1] == "worker":
    by_worker(sys.argv[2])
else:
    print(*{"sidecar": by_sidecar, "driver": by_driver}[sys.argv[1]](int(sys.argv[2])))
