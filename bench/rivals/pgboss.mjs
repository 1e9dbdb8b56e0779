// pg-boss. See https://github.com/timgit/pg-boss/blob/master/docs/api/workers.md for its settings.
import { load, serve, version, w } from "./harness.mjs";

const { PgBoss } = load("pg-boss");
const boss = new PgBoss({ connectionString: w.url, max: w.producers + 8, useListenNotify: true });
boss.on("error", (e) => console.error(e));
await boss.start();
const name = "rival";
await boss.createQueue(name, { notify: true });
const sql = (text) => boss.getDb().executeSql(text);

await serve({
  version: version("pg-boss"),
  put: (payloads) =>
    payloads.length > 1 ? boss.insert(name, payloads.map((data) => ({ data }))) : boss.send(name, payloads[0]),
  async start(got) {
    const options = { batchSize: Math.max(2, w.workers), pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
    await boss.work(name, options, async (jobs) => jobs.forEach((job) => got(job.data)));
    return () => boss.offWork(name);
  },
  async left() {
    const { rows } = await sql("SELECT count(*)::int AS n FROM pgboss.job WHERE name = 'rival' AND state < 'completed'");
    return rows[0].n;
  },
  close: async () => {
    await sql("DELETE FROM pgboss.job WHERE name = 'rival'");
    await boss.stop({ graceful: false });
  },
});
