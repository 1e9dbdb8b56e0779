'use strict'
// The connection of a client: connecting, reconnecting, the requests and their replies.
//
// All of it runs in one thread, in callbacks of the event loop. No callback of the program runs in between: onLost and
// onDraining are called in a later turn.

const errors = require('./errors')
const { Call, MAX_LIST, backoff, pauseFor, repeatable, unanswered } = require('./call')
const { Leases } = require('./leases')
const { Wire, sockets, checkPath, notListening, whyNot } = require('./wire')

// How long a connection must last before the back-off starts again, in milliseconds.
const STABLE_AFTER = 1000
const NO_TIME = 'no answer in time'

const now = () => performance.now()

class Session {
  constructor({ socket, worker, makeJob, onLost, onDraining, warn }) {
    this.path = socket
    this.worker = worker
    this.makeJob = makeJob
    this.onLost = onLost
    this.onDraining = onDraining
    this.warn = warn
    this.leases = new Leases()
    this.server = {} // the last reply to hello
    this.wire = undefined // the open connection
    this.binding = undefined // the connection on which leases are being bound
    this.joins = false // the sidecar asks for a settle and the next claim in one request
    this.closing = false // no new calls are accepted
    this.ended = false // no further connection is opened
    this.open = new Map() // calls without a reply on the current connection, by id
    this.queue = [] // calls that wait for a connection
    this.connections = 0 // how many there were
    this.waiting = 0 // calls whose callers wait: only these keep the process alive
    this.pauses = new Set() // calls that pause between two tries: functions that end the pause
    this.lastId = 0
    this.trying = undefined // the connection that is open or being opened
    this.connecting = false
    this.tries = 0 // to connect, since a connection that lasted
    this.timer = undefined // the pause between two tries to connect
  }

  // --- requests ---

  /** Sends calls, or queues them until there is a connection. With `on` it sends them only on that connection. */
  submit(calls, on) {
    for (const call of calls) {
      if (this.ended || (this.closing && !call.internal)) {
        refuse(call, new errors.Closed(`${call.op}: the client is closed`))
        continue
      }
      if (on && this.wire !== on) {
        refuse(call, new errors.NotConnected(`${call.op}: the connection has ended`))
        continue
      }
      call.id = ++this.lastId
      if (call.settles) this.leases.settling(call.leases(), +1)
      if (++this.waiting === 1) this.#ref()
      if (this.wire) this.#send(call)
      else this.queue.push(call)
    }
    if (!this.wire && this.queue.length > 0) this.#connect()
  }

  /** Sends a request and returns its reply, or throws its error. `ms` is the caller's time. */
  request(call, ms) {
    return new Promise((resolve, reject) => {
      call.onDone = (error, reply) => (error ? reject(error) : resolve(reply))
      if (ms !== Infinity) call.timer = setTimeout(() => this.#timeOut(call), Math.min(Math.max(ms, 0), 2 ** 31 - 1))
      this.submit([call])
    })
  }

  #send(call) {
    let frame
    try {
      frame = this.#encode(call)
    } catch (e) {
      return this.#finish(call, e)
    }
    this.open.set(call.id, call)
    this.wire.send(call, frame)
  }

  #encode(call) {
    const message = { id: call.id, op: call.op, ...call.fields }
    // A claim that is sent again waits only for the rest of its time.
    if (call.until !== undefined && call.resent) message.wait_ms = Math.max(0, Math.floor(call.until - now()))
    const frame = JSON.stringify(message) + '\n'
    const most = this.server.max_frame
    if (frame.length * 3 > most) {
      const size = Buffer.byteLength(frame) - 1
      if (size > most) {
        throw new errors.TooLarge(`${call.op} was not sent: it has ${size} bytes and the sidecar takes ${most} at most (max_frame): store the data elsewhere and send its address, or raise max_frame in the sidecar's config`, { code: 'too_large' })
      }
    }
    return frame
  }

  /** Ends a call for its caller. The caller's time is over, or it doesn't want the reply any more. */
  #timeOut(call) {
    const { wire } = this
    if (wire?.writing(call) && this.leases.size === 0 && ![...this.open.values()].some((c) => c.claim())) {
      // Half a frame was sent, and no other frame can follow. A client with leases would lose them.
      wire.forgetUnwritten()
      this.abandon(call, this.#late(call))
      wire.end(new Error('the sidecar does not read'))
      return
    }
    this.abandon(call, this.#late(call))
  }

  #late(call) {
    if (call.sent || call.resent) return unanswered(call, NO_TIME)
    const path = this.path ?? sockets().join(' or ')
    const why = this.wire ? `the sidecar on ${path} doesn't read` : `no sidecar answers on ${path}`
    return new errors.NotConnected(`${why}: ${call.op} was not sent (waited ${Number((call.ms / 1000).toFixed(2))} s)`)
  }

  abandon(call, error) {
    if (call.done) return
    const queued = this.queue.indexOf(call)
    if (queued >= 0) this.queue.splice(queued, 1)
    call.abandoned = true
    call.dropped = !call.sent
    this.#answer(call, error)
    if (call.dropped) this.#remove(call)
  }

  #finish(call, error, reply) {
    this.#remove(call)
    this.#answer(call, error, reply)
  }

  #remove(call) {
    this.open.delete(call.id)
    const { wire } = this
    if (call.settles && !call.removed) {
      this.leases.settling(call.leases(), -1)
      // Its settle failed, and the bind left it out.
      if (wire && this.binding !== wire && !this.leases.bound(call.leases(), wire.number)) this.#bind(wire, 0)
    }
    call.removed = true
    this.progress?.()
  }

  #answer(call, error, reply) {
    if (call.done) return
    call.done = true
    clearTimeout(call.timer)
    if (--this.waiting === 0) this.#unref()
    call.reply = reply
    call.onDone(error, reply)
  }

  // A client that waits for nothing doesn't keep its process alive.
  #ref() {
    this.trying?.ref()
    this.timer?.ref()
  }

  #unref() {
    this.trying?.unref()
    this.timer?.unref()
  }

  // --- connections ---

  #connect() {
    if (this.connecting || this.ended) return
    this.connecting = true
    if (this.connections > 0) return this.#reconnect()
    const paths = this.path ? [this.path] : sockets()
    try {
      paths.forEach(checkPath)
    } catch (e) {
      this.connecting = false
      for (const call of this.queue.splice(0)) this.#finish(call, e)
      return
    }
    this.#first(paths, [])
  }

  /** Opens the first connection. If there is none, the calls fail, so that their callers get the error. */
  #first(paths, tried) {
    const path = paths[tried.length]
    this.#open(path, (error) => {
      if (!error) {
        this.path = path // a client that reconnects must not reach another sidecar
        return
      }
      if (this.ended) return
      const next = notListening(error)
      if (next) tried.push(`${path} (${whyNot(path, error)})`)
      if (next && tried.length < paths.length) return this.#first(paths, tried)
      this.connecting = false
      const queued = this.queue.splice(0)
      for (const call of queued) {
        this.#finish(
          call,
          error instanceof errors.SidecarError
            ? error
            : new errors.NotConnected(`no sidecar answers on ${next ? `${tried.join(' or ')}: start one, or name its socket in QSIDECAR_SOCKET` : `${path}: ${error.message}`}`, { cause: error }),
        )
      }
    })
  }

  #reconnect(away = false) {
    const attempt = () => {
      this.timer = undefined
      if (this.ended) return
      this.#open(this.path, (error) => {
        if (!error) {
          if (away) this.warn('reconnected to the sidecar')
        } else if (!this.ended) {
          if (!away) this.warn(`can't reach the sidecar on ${this.path}, trying again: ${error.message}`)
          this.#reconnect(true)
        }
      })
    }
    const tries = this.tries++
    if (tries === 0) return attempt()
    this.timer = setTimeout(attempt, backoff(tries))
    if (this.waiting === 0) this.timer.unref()
  }

  /** Opens a connection and sends hello. Calls `opened` once, with an error or without. */
  #open(path, opened) {
    const hello = { id: 0, op: 'hello', version: 1, events: ['lost', 'draining'] }
    if (this.worker) hello.worker = this.worker
    let ready = false
    const wire = new Wire(path, {
      onConnect: () => wire.send({}, JSON.stringify(hello) + '\n'),
      onMessage: (message) => {
        if (ready) return this.#handle(wire, message)
        if (message.event !== undefined) return
        if (message.ok !== true) {
          return wire.end(errors.fromWire(message.error))
        }
        ready = true
        wire.unlimited()
        this.#opened(wire, message)
        opened()
      },
      onEnd: (why) => {
        if (!ready) return opened(why)
        this.#closed(wire, why)
      },
    })
    this.trying = wire
    if (this.waiting === 0) wire.unref()
  }

  #opened(wire, hello) {
    this.server = hello
    this.wire = wire
    this.connecting = false
    wire.number = ++this.connections
    this.joins = false
    for (const call of this.queue.splice(0)) this.#send(call)
    this.#bind(wire, 0)
    if (this.waiting === 0) wire.unref()
  }

  /** Binds the held leases, without those of a settle under way: a bind after it would find them lost. */
  #bind(wire, tries) {
    const calls = [...this.open.values(), ...this.queue].filter((call) => call.settles)
    const settling = new Set(calls.flatMap((call) => call.leases()))
    const leases = this.leases.unbound(wire.number).filter((lease) => !settling.has(lease)).slice(0, MAX_LIST)
    this.binding = leases.length > 0 ? wire : undefined
    if (leases.length === 0) return
    const call = new Call(
      'extend',
      { leases, bind: true },
      (error) => {
        if (!error) return this.#bind(wire, 0)
        if (this.wire !== wire) return // the next connection binds them
        setTimeout(() => this.wire === wire && this.#bind(wire, tries + 1), pauseFor(error, tries + 1))
      },
      { internal: true },
    )
    call.rebinds = true
    this.submit([call], wire)
  }

  /** Queues the calls of a connection that ended if they can be repeated, fails the others, and connects again. */
  #closed(wire, why) {
    if (this.wire !== wire) return
    this.wire = undefined
    const calls = [...this.open.values()].sort((a, b) => a.id - b.id)
    this.open.clear()
    const again = []
    for (const call of calls) {
      if (call.done || call.rebinds || call.op === 'bye' || (call.sent && !repeatable(call.op, call.fields))) {
        this.#finish(call, unanswered(call, why.message))
        continue
      }
      if (call.op === 'claim' && call.until === 0) { // endClaims ended it
        this.#finish(call, undefined, { jobs: [] })
        continue
      }
      call.resent ||= call.sent
      call.sent = false
      again.push(call)
    }
    this.queue.unshift(...again)
    if (this.ended) return this.#endAll()
    this.connecting = true
    if (now() - wire.since >= STABLE_AFTER) this.tries = 0
    this.#reconnect()
  }

  // --- replies ---

  #handle(wire, message) {
    if (message.event !== undefined) {
      if (message.event === 'lost') this.reportLost(this.leases.lose(message.leases ?? [], message.reason))
      else if (message.event === 'draining') setImmediate(() => this.#callback('onDraining', this.onDraining))
      return // others are of a later version
    }
    const error = message.ok === true ? undefined : errors.fromWire(message.error)
    if (message.id === undefined || message.id === null) {
      if (!error) return wire.end(new Error('a reply without an id'))
      // The error is about the whole connection, which closes. Any open call can be the cause. None is repeated,
      // because the cause would break every later connection too.
      for (const call of [...this.open.values()]) this.#finish(call, error)
      return
    }
    const call = this.open.get(message.id)
    if (!call) return
    const claim = call.claim()
    if (claim) {
      this.joins = message.join === true
      const jobs = message.jobs ?? []
      if (call.abandoned) this.#giveBack(jobs)
      else {
        // A settle that failed can have jobs of its claim.
        message.jobs = jobs.map(this.makeJob)
        this.leases.claimed(wire.number, call, message.jobs)
      }
    }
    let outcome = error
    if (call.op === 'bye' && !error) this.ended = true // the sidecar closes the connection, and no other is opened
    else if (call.settles) outcome = this.leases.settled(call, message, error)
    else if (call.op === 'extend') this.reportLost(this.leases.extended(wire.number, call, message, error))
    this.#finish(call, outcome, message)
  }

  #giveBack(jobs) {
    if (jobs.length === 0) return
    const fields = { leases: jobs.map((job) => job.lease), snooze: true, delay_ms: 0 }
    this.submit([new Call('nack', fields, () => {}, { internal: true })])
  }

  reportLost(jobs) {
    if (jobs.length === 0) return
    for (const job of jobs) job.lost = true
    setImmediate(() => {
      for (const job of jobs) job._lose()
      this.#callback('onLost', () => this.onLost(jobs))
    })
  }

  #callback(name, call) {
    try {
      call()
    } catch (e) {
      this.warn(`${name} failed: ${e?.stack ?? e}`)
    }
  }

  // --- the end ---

  /** Pauses between two tries. Returns false if the call ended in between, for example a cancelled claim. */
  pause(op, ms) {
    return new Promise((resolve) => {
      const entry = { op, end: (result) => (clearTimeout(timer), this.pauses.delete(entry), resolve(result)) }
      const timer = setTimeout(() => entry.end(true), ms)
      this.pauses.add(entry)
    })
  }

  /** Ends the waiting claims: they return what they get now, or fail with the error. */
  endClaims(error) {
    for (const call of this.queue.filter((c) => c.op === 'claim')) {
      this.queue.splice(this.queue.indexOf(call), 1)
      this.#finish(call, error, { jobs: [] })
    }
    for (const entry of [...this.pauses]) {
      if (entry.op === 'claim' || error) entry.end(false)
    }
    const open = [...this.open.values()].filter((c) => c.op === 'claim')
    for (const call of open) {
      call.until = 0 // if it is sent again
      if (error) this.abandon(call, error)
    }
    if (open.length > 0) this.submit([new Call('cancel_claim', {}, () => {}, { internal: true })])
  }

  cancelClaim(call, error) {
    const sent = call.sent
    this.abandon(call, error)
    if (sent && this.wire) this.submit([new Call('cancel_claim', { request: call.id }, () => {}, { internal: true })], this.wire)
  }

  /** Waits until settles and abandoned claims are answered. */
  async waitSettled(deadline) {
    const busy = () => [...this.open.values(), ...this.queue].some((c) => c.settles || (c.op === 'claim' && c.abandoned))
    while (busy() && now() < deadline) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, deadline - now())
        this.progress = () => (clearTimeout(timer), resolve())
      })
      this.progress = undefined
    }
  }

  end() {
    this.ended = this.closing = true
    clearTimeout(this.timer)
    this.trying?.end(new Error('the client is closed'))
    this.#endAll()
  }

  #endAll() {
    this.leases.clear()
    for (const call of [...this.open.values(), ...this.queue.splice(0)]) {
      this.#finish(call, new errors.Closed(`${call.op}: the client is closed`))
    }
  }
}

/** Ends a call that the session doesn't accept. */
function refuse(call, error) {
  call.done = true
  clearTimeout(call.timer)
  call.onDone(error)
}

module.exports = { Session, now }
