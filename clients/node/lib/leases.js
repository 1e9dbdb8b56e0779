'use strict'
// The session leases that a client holds.

const errors = require('./errors')

class Leases {
  #held = new Map() // by lease: the job, the connection it is bound to, and the settles in progress

  get size() {
    return this.#held.size
  }

  keys() {
    return [...this.#held.keys()]
  }

  claimed(connection, call, jobs) {
    if (call.claim().lease_ms !== undefined) return // timed leases outlive the connection and are not bound
    for (const job of jobs) this.#held.set(job.lease, { job, connection, settling: 0 })
  }

  /** Removes the leases that a reply to a settle reports as settled or lost. Returns the caller's error. */
  settled(call, reply, error) {
    if (error && !(error instanceof errors.LeaseLost)) return error
    for (const lease of call.leases()) this.#held.delete(lease)
    const lost = error ? call.leases() : (reply.lost ?? [])
    return lost.length > 0 && call.resent ? new errors.SettledOrLost(call.op, lost) : error
  }

  /** Updates the leases after a reply to an extend. Returns the jobs that are lost. */
  extended(connection, call, reply, error) {
    if (error && !(error instanceof errors.LeaseLost)) return []
    const lost = this.lose(error ? call.leases() : (reply.lost ?? []))
    for (const lease of call.leases()) {
      const held = this.#held.get(lease)
      if (held && call.fields.bind) held.connection = connection
      else if (held && call.fields.lease_ms !== undefined) this.#held.delete(lease) // a timed lease from now on
    }
    return lost
  }

  /** Counts settles in progress. A lease with one is not reported as lost: the settle's reply reports it. */
  settling(leases, d) {
    for (const lease of leases) {
      const held = this.#held.get(lease)
      if (held) held.settling += d
    }
  }

  /** Removes lost leases and returns their jobs, except those that are being settled. */
  lose(leases, reason) {
    const reported = []
    for (const lease of leases) {
      const held = this.#held.get(lease)
      this.#held.delete(lease)
      if (held?.settling === 0) {
        if (reason === 'cancelled') held.job.cancelled = true
        reported.push(held.job)
      }
    }
    return reported
  }

  /** Returns whether the connection has those of the leases that are held. */
  bound(leases, connection) {
    return leases.every((lease) => (this.#held.get(lease)?.connection ?? connection) === connection)
  }

  /** Returns the held leases that are not known to be bound to that connection. */
  unbound(connection) {
    return [...this.#held].filter(([, held]) => held.connection !== connection).map(([lease]) => lease)
  }

  clear() {
    this.#held.clear()
  }
}

module.exports = { Leases }
