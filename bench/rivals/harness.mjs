// Runs a queue of Node.js for bench/rivals_script.go: node RIVAL.mjs WORKLOAD, a JSON object with
// url, workers, size, batch and producers. It reads commands, one a line, and answers each with a
// line of JSON. The current directory has the packages.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(process.cwd() + "/package.json");
export const load = (name) => require(name);
export const version = (name) => `${name} ${JSON.parse(require("node:fs").readFileSync(`node_modules/${name}/package.json`)).version}`;
export const w = JSON.parse(process.argv[2]);

const payload = (at) => ({ at, pad: "a".repeat(w.size) });
const all = (n, f) => Promise.all(Array.from({ length: n }, f));

// queue has put(payloads), start(got), which returns a function that stops the workers, and left().
// got is called with each payload when its job starts.
export async function serve(queue) {
  let began;
  const commands = {
    version: () => queue.version,
    left: () => queue.left(),
    async produce(n) {
      let todo = n;
      const batch = Array(w.batch).fill(payload(0));
      began = performance.now();
      await all(w.producers, async () => {
        while ((todo -= w.batch) >= 0) await queue.put(batch);
      });
      return { jobs: n, seconds: (performance.now() - began) / 1000 };
    },
    // The clock includes the start of the workers, because some fetch jobs then.
    async consume(n) {
      let done = 0;
      began = performance.now();
      const stop = await queue.start(() => done++);
      while (done < n || (await queue.left()) > 0) await sleep(2);
      const seconds = (performance.now() - began) / 1000;
      await stop();
      return { jobs: done, seconds };
    },
    async flow(n, rate) {
      let next = 0, done = 0;
      const waits = [];
      const stop = await queue.start(({ at }) => {
        done++;
        waits.push(performance.now() - at);
      });
      began = performance.now();
      await all(w.producers, async () => {
        for (let k; (k = ++next) <= n; ) {
          let at = began + (k / rate) * 1000; // if all producers were busy then, it counts from then
          const early = at - performance.now();
          if (early > 0) {
            await sleep(early);
            at = performance.now();
          }
          await queue.put([payload(at)]);
        }
      });
      while (done < n || (await queue.left()) > 0) await sleep(2);
      await stop();
      return { jobs: done, seconds: (performance.now() - began) / 1000, waits };
    },
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, ...args] = line.split(" ");
    console.log(JSON.stringify(await commands[name](...args.map(Number))));
  }
  await queue.close();
  process.exit(0);
}
