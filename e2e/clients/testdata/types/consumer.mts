// A program that uses every part of the types, as an ES module. TestNodeTypes compiles it.

import {
  Client, Dead, LeaseLost, QsidecarError, Retry, SidecarError, Snooze, UnknownOutcome, Worker, testing,
  type Enqueued, type Handler, type Handlers, type Job, type JobInfo, type NewJob, type WorkerOptions,
} from 'qsidecar'

const client = new Client({ worker: 'types', onLost: (jobs: Job[]) => console.log(jobs.map((job) => job.id)), logger: console })

const one: Enqueued = await client.enqueue('mail', { to: 'ada' }, { key: 'k', delayMs: 5, runAt: new Date(), headers: { a: 'b' }, group: 'ada', requestTimeoutMs: 500 })
const more: NewJob[] = [{ queue: 'mail', payload: Buffer.from('x'), priority: 1, maxAttempts: 3, timeoutMs: 5 }]
await client.enqueueMany(more)

for (const job of await client.claim(['mail', 'audit'], { max: 10, waitMs: 1, signal: AbortSignal.timeout(5) })) {
  const raw: Buffer = job.raw
  console.log(raw, job.payload.to, job.enqueuedAt.getTime(), job.signal.aborted, String(job), one.id)
  job.followUp('audit', 1)
  if (job.lost) continue
  await job.extend({ leaseMs: 5000 })
  await job.nack(new Error('x'), { delayMs: 5, snooze: true })
  const follow: Enqueued[] = await job.ack({ result: { a: 1 }, enqueue: more })
  console.log(follow)
}
for await (const job of client.jobs('mail')) await job.ack()

const found: JobInfo[] = await client.peek({ queue: 'mail', state: 'dead', max: 5 })
console.log((await client.peek({ state: 'blocked' })).length, found[0]?.errors[0]?.at.getTime(), (await client.stats('mail'))[0]?.ready)
const count: number = await client.retry('mail', 'all')
await client.change('mail', ['1'], { priority: count })
await client.purge('mail', 'dead')
const declared: 'created' | 'updated' | 'unchanged' | 'ignored' = await client.schedule('daily', { queue: 'mail', cron: '@daily', tz: 'Europe/Berlin', payload: { a: 1 } })
console.log(declared)
await client.limit('mail', { groupLimit: 2, groupOnFailure: 'skip', groupReady: 3 })

const handlers: Handlers = {
  mail: async (job) => {
    if (job.attempt > 3) throw new Dead('no')
    if (job.attempt > 2) throw new Snooze('later', { delayMs: 5 })
    throw new Retry('again', { cause: new Error('x') })
  },
  resize: { result: true, run: (job) => job.payload },
  audit: async (job: Job<{ to: string }>) => job.payload.to.length,
}
const handler: Handler<number> = (job) => job.payload.toFixed()
const numbers: Job<number>[] = await client.claim('numbers')
console.log(numbers[0]?.payload.toFixed(), new Worker({ numbers: handler }))
const options: WorkerOptions = { concurrency: 8, queues: { mail: 3, resize: null }, ack: 'sync', before: (job) => job.id, after: [(job, error) => [job, error]], client }
const worker = new Worker(handlers, options)
await worker.run({ drain: true, threads: 2, module: import.meta.url })
worker.schedule('tick', { queue: 'mail', everyMs: 60_000, missed: 'all', overlap: 'skip', source: 'app', version: 1 })
worker.stop()

const did = testing.inline({ workers: [worker], throws: false })
console.log(did.of('mail')[0]?.error, did.jobs[0]?.payload, did.jobs[0]?.fields.group)
did.restore()

try {
  await client.close()
} catch (error) {
  if (error instanceof LeaseLost) console.log(error.retryMs)
  else if (error instanceof UnknownOutcome) console.log(error.reported)
  else if (error instanceof SidecarError) console.log(error.field, error.index)
  else if (error instanceof QsidecarError) console.log(error.code)
}

// @ts-expect-error: the option is delayMs
await client.enqueue('mail', 1, { delay: 5 })
// @ts-expect-error: the times are missing
await client.schedule('daily', { queue: 'mail' })
// @ts-expect-error: a queue is a text
await client.claim(5)
// @ts-expect-error: the payload has no such field
new Worker({ mail: (job: Job<{ to: string }>) => job.payload.from })
// @ts-expect-error: jobs come from claims
new (await import('qsidecar')).Job()
