// Works so many jobs, and prints the bytes of the heap after a tenth of them and after all. Usage: memory.mjs JOBS ACK

import { Client, Worker } from '../../../clients/node/index.mjs'

const [, , text, ack] = process.argv
const [total, queue] = [Number(text), `memory-${ack}`]
const heap = []
let done = 0

const client = new Client({ requestTimeoutMs: 600_000 })
const worker = new Worker(
  {
    [queue]: () => {
      if (++done % (total / 10) !== 0) return
      global.gc()
      heap.push(process.memoryUsage().heapUsed)
    },
  },
  { ack, client },
)
const jobs = Array.from({ length: 1000 }, () => ({ queue, payload: { to: 'ada' } }))
for (let i = 0; i < total; i += jobs.length) await client.enqueueMany(jobs)
await worker.run({ drain: true })
console.log(JSON.stringify({ done, first: heap[0], last: heap.at(-1) }))
