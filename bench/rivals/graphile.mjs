// Graphile Worker. Its settings for speed are those of https://worker.graphile.org/docs/performance.
import { load, serve, version, w } from "./harness.mjs";

const { Logger, makeWorkerUtils, run } = load("graphile-worker");
const { Pool } = load("pg");
const logger = new Logger(() => () => {});
const pgPool = new Pool({ connectionString: w.url, max: Math.max(w.producers, Math.min(w.workers, 98)) + 2 });
pgPool.on("error", () => {}); // its documentation requires handlers
pgPool.on("connect", (client) => client.on("error", () => {}));
const utils = await makeWorkerUtils({ pgPool, logger });
await utils.migrate();

const batching = w.local ? { localQueue: { size: Math.max(500, w.workers + 1) }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {};

await serve({
  version: version("graphile-worker"),
  put: (payloads) =>
    payloads.length > 1
      ? utils.addJobs(payloads.map((payload) => ({ identifier: "rival", payload })))
      : utils.addJob("rival", payloads[0]),
  async start(got) {
    const runner = await run({
      pgPool, logger,
      taskList: { rival: (payload) => got(payload) },
      preset: { worker: { concurrentJobs: w.workers, ...batching } },
      noHandleSignals: true,
    });
    return () => runner.stop();
  },
  async left() {
    const { rows } = await pgPool.query("SELECT count(*)::int AS n FROM graphile_worker._private_jobs");
    return rows[0].n;
  },
  close: () => pgPool.end(),
});
