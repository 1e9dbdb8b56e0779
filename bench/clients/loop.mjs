// One process of the Node client that processes a queue until it is empty: loop.mjs sidecar N, or loop.mjs worker.
//
// It claims and acks N jobs at a time. It prints the number of jobs and the seconds. The worker of the client does that
// for each line of its input: how many jobs it runs at once, and behind or sync.

import { createInterface } from 'node:readline'
import { Client, Worker } from '../../clients/node/index.mjs'

async function bySidecar(count) {
  const client = new Client()
  await client.ping()
  const began = performance.now()
  let done = 0
  for (;;) {
    const jobs = await client.claim('clients', { max: count })
    if (jobs.length === 0) break
    if (count === 1) await jobs[0].ack()
    else if ((await client.ackMany(jobs)).length > 0) throw new Error('a lease was lost')
    done += jobs.length
  }
  console.log(done, (performance.now() - began) / 1000)
  await client.close()
}

async function byWorker() {
  for await (const line of createInterface({ input: process.stdin })) {
    const [concurrency, ack] = line.split(' ')
    const times = []
    const worker = new Worker({ clients: () => void times.push(performance.now()) })
    await worker.run({ concurrency: Number(concurrency), drain: true, ack })
    console.log(times.length, (times.at(-1) - times[0]) / 1000)
  }
}

const [, , mode, count] = process.argv
await (mode === 'worker' ? byWorker() : bySidecar(Number(count)))
