// The same types for a CommonJS module.

import qsidecar = require('qsidecar')

const worker: qsidecar.Worker = new qsidecar.Worker({ mail: (job: qsidecar.Job) => job.payload }, { concurrency: 2 })
export = worker
