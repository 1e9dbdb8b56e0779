// The Worker of the Node client of this repository, with its sidecar.
import { Client, Worker } from "../../clients/node/index.mjs";
import { serve, w } from "./harness.mjs";

const client = new Client({ socket: w.socket });

await serve({
  version: "this commit",
  put: (payloads) =>
    payloads.length > 1
      ? client.enqueueMany(payloads.map((payload) => ({ queue: w.queue, payload })))
      : client.enqueue(w.queue, payloads[0]),
  async start(got) {
    const worker = new Worker({ [w.queue]: ({ payload }) => void got(payload) }, { socket: w.socket });
    const running = worker.run({ concurrency: w.workers, signals: false });
    return () => {
      worker.stop();
      return running;
    };
  },
  left: async () => (await client.stats(w.queue)).reduce((n, q) => n + q.ready + q.claimed, 0),
  close: () => client.close(),
});
