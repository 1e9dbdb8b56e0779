'use strict'
// The program of a thread: it loads the worker's module and runs one job at a time.

const { parentPort, workerData } = require('node:worker_threads')

const { dump } = require('./arguments')
const { QUIET } = require('./client')
const errors = require('./errors')
const handlers = require('./handlers')
const { Job } = require('./job')
const { load } = require('./load')

const reports = new Map() // open reports of progress, by number
let reported = 0

// A job settles by the outcome of its function, which the main thread sends. So it does with reports of progress.
const client = {
  async _call(op, fields) {
    if (op === 'progress') {
      const number = ++reported
      parentPort.postMessage({ report: fields, number })
      return new Promise((resolve, reject) => reports.set(number, { resolve, reject }))
    }
    throw new errors.QsidecarError(`${op}: in a thread, a job is settled by what its function returns or throws`)
  }
}

async function main() {
  const worker = await load(workerData.module)
  new handlers.Uncaught(QUIET)
  let current
  parentPort.on('message', async (message) => {
    if (message.lost) return current?._lose()
    if (message.number) return answer(message)
    const job = new Job(client, message.job)
    Object.defineProperty(job, 'lost', { get: () => Atomics.load(message.flag, 0) > 0, set() {} })
    Object.defineProperty(job, 'cancelled', { get: () => Atomics.load(message.flag, 0) === 2, set() {} })
    current = job
    let { result, error } = await handlers.perform(job, () => worker.perform(job))
    try {
      const data = error ? undefined : dump('ack', 'result', result)
      parentPort.postMessage(
        error ? { error: described(error.reason) } : { result: typeof data === 'string' ? Buffer.from(data) : data, followUps: job._followUps },
      )
    } catch (reason) {
      parentPort.postMessage({ error: described(reason) })
    }
  })
  parentPort.postMessage({ ready: true })
}

function answer({ number, error }) {
  const { resolve, reject } = reports.get(number)
  reports.delete(number)
  if (error) reject(new (errors[error.name] ?? Error)(error.message))
  else resolve({})
}

function described(reason) {
  if (!(reason instanceof Error)) return { name: 'Error', message: String(reason), stack: `thrown: ${String(reason)}` }
  return { name: reason.name, message: reason.message, stack: String(reason.stack), delayMs: reason.delayMs }
}

main()
