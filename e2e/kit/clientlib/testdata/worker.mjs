// The worker of the end-to-end tests of Node: see clientlib.Worker.

import fs from 'node:fs'
import { Worker } from 'qsidecar'

const log = fs.openSync(process.env.WORKER_LOG, 'a')

const note = (job) => fs.writeSync(log, `${job.payload} ${job.attempt}\n`)

export default new Worker({
  quick: (job) => {
    note(job)
  },
  long: async (job) => {
    note(job)
    if (process.env.WORKER_BLOCKS) return void fs.openSync(process.env.WORKER_GATE) // as a job that computes
    const gate = await fs.promises.open(process.env.WORKER_GATE)
    await gate.close()
  },
})
