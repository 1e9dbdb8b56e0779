'use strict'
// The errors of this package: one class for each code of the protocol, and the client's own.

class QsidecarError extends Error {
  constructor(message, options) {
    super(message, options)
    this.code = this.constructor.code
  }
}
QsidecarError.code = 'error'

class NotConnected extends QsidecarError {}
NotConnected.code = 'not_connected'

class Closed extends QsidecarError {}
Closed.code = 'closed'

class SettledOrLost extends QsidecarError {
  constructor(op, leases) {
    super(
      `${op}: sent twice, because no answer came to the first try; ` +
        `${leases.length} of its leases were settled by that, or had been lost`,
    )
    this.op = op
    // Not enumerable, because a lease is the right to settle and must not be logged.
    Object.defineProperty(this, 'leases', { value: leases })
  }
}
SettledOrLost.code = 'settled_or_lost'

class JobFailed extends QsidecarError {
  constructor(queue, job) {
    const gone = 'is gone: it was removed, or it ended through another sidecar and its queue keeps no done jobs (retention)'
    super(`job ${job.id} of ${queue} ${job.state === 'dead' ? `is dead: ${job.lastError ?? 'no attempt has an error'}` : gone}`)
    this.job = job
  }
}
JobFailed.code = 'job_failed'

class NotEnded extends QsidecarError {
  constructor(queue, job, waitMs) {
    super(`job ${job.id} of ${queue} has not ended within ${waitMs / 1000} s`)
    this.job = job
  }
}
NotEnded.code = 'not_ended'

class SidecarError extends QsidecarError {
  constructor(message, { code, field, index, retryMs } = {}) {
    const where = [field !== undefined && `field ${field}`, index !== undefined && `index ${index}`].filter(Boolean)
    super(message)
    if (code !== undefined) this.code = code
    this.field = field
    this.index = index
    this.retryMs = retryMs
    this.message = `${message} (${[this.code, ...where].join(', ')})`
  }
}
SidecarError.code = 'internal'

const classes = {}
const reported = {
  BadFrame: 'bad_frame',
  BadRequest: 'bad_request',
  TooLarge: 'too_large',
  UnknownOp: 'unknown_op',
  UnknownQueue: 'unknown_queue',
  Forbidden: 'forbidden',
  Unsupported: 'unsupported',
  LeaseLost: 'lease_lost',
  Busy: 'busy',
  Draining: 'draining',
  Unavailable: 'unavailable',
  UnknownOutcome: 'unknown_outcome',
  Internal: 'internal',
}
const byCode = {}
for (const [name, code] of Object.entries(reported)) {
  classes[name] = { [name]: class extends SidecarError {} }[name]
  classes[name].code = code
  byCode[code] = classes[name]
}

/** The job was cancelled while it ran. Not a class of byCode: the sidecar reports it by an event. */
classes.Cancelled = class Cancelled extends classes.LeaseLost {}

/** Returns the error for the map `error` of a reply. A code of a later version is an Internal. */
function fromWire(fields) {
  const code = String(fields?.code ?? 'internal')
  const error = new (byCode[code] ?? classes.Internal)(String(fields?.message ?? ''), {
    code,
    field: fields?.field,
    index: fields?.index,
    retryMs: fields?.retry_ms,
  })
  // The sidecar's connection to the database broke. Otherwise the reply did not arrive.
  if (error instanceof classes.UnknownOutcome) error.reported = true
  return error
}

const all = { QsidecarError, NotConnected, Closed, SettledOrLost, JobFailed, NotEnded, SidecarError, ...classes }
for (const [name, kind] of Object.entries(all)) {
  // Bun reads the name while the error is constructed, and ignores a getter.
  Object.defineProperty(kind.prototype, 'name', { value: name, configurable: true, writable: true })
}

module.exports = { ...all, fromWire }
