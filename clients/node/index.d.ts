/// <reference types="node" />

/** A value that JSON has, or an object that `JSON.stringify` turns into one. */
export type Payload = unknown

/** The options of a job to store. Where an option is absent, the queue's config decides. */
export interface JobOptions {
  /** −32,768 to 32,767. Jobs with a higher priority are claimed first. */
  priority?: number
  /** How long until the job is ready, in milliseconds, up to ten years. */
  delayMs?: number
  /** When the job is ready: a date, or milliseconds since 1970. Not together with `delayMs`. */
  runAt?: Date | number
  /** Makes the enqueue idempotent, so that the client can repeat it. A second job with the key is not stored. */
  key?: string
  /** Texts that are delivered with the job. `traceparent` names its trace. */
  headers?: Record<string, string>
  /** After so many failed attempts the job is dead. */
  maxAttempts?: number
  /** The time limit of one run, in milliseconds. */
  timeoutMs?: number
  /** Jobs of the queue with the same group run one at a time and in order, or as many at once as the queue's `groupLimit` allows. */
  group?: string
  /** The id of an open batch of which it is a job. */
  batch?: string
  /** No run starts at this time or later: a date, or milliseconds since 1970. */
  startBefore?: Date | number
  /** The same, as the time in milliseconds after that at which the job is ready first. Not together with `startBefore`. */
  startWithinMs?: number
  /** What becomes of a job that did not start in time. */
  onExpiry?: 'dead' | 'delete'
  /** How long the done job is kept at least, in milliseconds, so that others find its result. */
  retainMs?: number
  /** Until when the key returns the job: until a worker has it, or its end, the default. With `start` a repeated enqueue can store a second job. */
  keyUntil?: 'start' | 'finish'
  /**
   * What becomes of the job if its key returns another one. `keep`, the default: it is not stored. `replace`: the other one gets its
   * payload, headers and time; while that runs, it waits for the end. `debounce`: the same, and the other one waits for `delayMs` again.
   */
  onConflict?: 'keep' | 'replace' | 'debounce'
  /** With `debounce`: the job is ready at most so many milliseconds after it was stored. */
  debounceMaxMs?: number
}

/** A job to store. A payload that is a `Buffer` or `Uint8Array` is stored unchanged, any other one as its JSON. */
export interface NewJob extends JobOptions {
  queue: string
  payload?: Payload
}

/** The result of an enqueue. If the key was known, `id` and `state` are those of the first job with it. */
export interface Enqueued {
  id: string
  duplicate: boolean
  state?: string
  /** What `onConflict` did, if it was not a duplicate. */
  outcome?: 'replaced' | 'pending'
}

/** The time limit of one call. */
export interface CallOptions {
  /** In milliseconds, not counting a claim's own wait. The default is that of the client. */
  requestTimeoutMs?: number
}

/** The options of a claim. */
export interface ClaimOptions extends CallOptions {
  /** How many jobs at most: 1 (the default) to 1,000. */
  max?: number
  /** How long to wait for the first job, in milliseconds, up to an hour. */
  waitMs?: number
  /** The client holds the jobs for so long, even if it ends. Without it, it holds them until it settles them or ends. */
  leaseMs?: number
  /** With `rotate`, several queues take turns. With `strict` (the default), the first one that has a job comes first. */
  order?: 'rotate' | 'strict'
  /** With `rotate`: how many turns a queue has where the others have one, as `{mail: 3}`. */
  weights?: Record<string, number>
  /** Ends the wait. The claim then fails with the signal's reason, and jobs that come late go back. */
  signal?: AbortSignal
}

/** A schedule: its times, its jobs, and its source. */
export type Schedule = ScheduleOptions & ({ cron: string; everyMs?: undefined } | { everyMs: number; cron?: undefined })

/** The parts of a schedule besides its times. */
export interface ScheduleOptions {
  queue: string
  /** The time zone of `cron`, as `Europe/Berlin`. The default is UTC. */
  tz?: string
  /** The payload of the jobs, as in `enqueue`, of 64 KiB at most. */
  payload?: Payload
  /** All times are later by a part of this, which the name decides: whole seconds, in milliseconds, up to a day. */
  splayMs?: number
  /** The priority of the jobs. */
  priority?: number
  /** The headers of the jobs. */
  headers?: Record<string, string>
  /** What becomes of the times at which no sidecar ran: `one` job for the last (the default), `all` (the last 100), or `skip`. */
  missed?: 'one' | 'all' | 'skip'
  /** `skip`: no job while the last one isn't done or dead. */
  overlap?: 'allow' | 'skip'
  /** The name of what declares it. */
  source?: string
  /** Of the definition. A lower one than that of the database is ignored. */
  version?: number
}

/** Limits of a queue. 0 removes one. */
export interface Limits {
  /** How many jobs can be claimed at a time. */
  maxClaimed?: number
  /** How many jobs can start in a time, as `100/s`, `30/m` or `5/h`. */
  rate?: string | 0
  /** How many jobs can start at once after a pause. It needs a rate. */
  burst?: number
  /** How many jobs of a group can be claimed at a time. 0: one. */
  groupLimit?: number
  /** `hold`: a failed job keeps its slot of the group during its back-off, the default. `skip`: it doesn't. */
  groupOnFailure?: 'hold' | 'skip'
  /** How many jobs of a group can be ready at a time, besides the claimed ones, so that groups take turns. */
  groupReady?: number
  /** First removes all limits. */
  none?: boolean
}

/** How a failed attempt ends. */
export interface NackOptions {
  /** How long until the job is ready again, in milliseconds. 0: at once. Absent: the queue's back-off. */
  delayMs?: number
  /** No more attempts. */
  dead?: boolean
  /** Not now: this delivery uses up no attempt. */
  snooze?: boolean
}

/** Where the lines of the log go. `console` is one. */
export interface Logger {
  info?(line: string): void
  warn(line: string): void
  error(line: string): void
}

/** The options of a client. */
export interface ClientOptions {
  /**
   * The path of the sidecar's socket. The default is `QSIDECAR_SOCKET`, or else the first of
   * `$XDG_RUNTIME_DIR/qsidecar/qsidecar.sock`, `$XDG_STATE_HOME/qsidecar/qsidecar.sock` (default: `~/.local/state`; not for root)
   * and `/run/qsidecar/qsidecar.sock` on which a sidecar listens. Root skips a runtime directory of another user.
   */
  socket?: string
  /** A name of at most 128 bytes, which is stored with claims, for people. */
  worker?: string
  /**
   * The time limit of a call in milliseconds. Within it, the call waits for a sidecar that is down, and is repeated if the sidecar
   * can't carry it out. The default is a minute, and for an enqueue the number of seconds in `QSIDECAR_ENQUEUE_TIMEOUT`, or else 2.
   */
  requestTimeoutMs?: number
  /** Called with held jobs whose leases are lost. */
  onLost?: (jobs: Job[]) => void
  /** Called if the sidecar is about to stop. */
  onDraining?: () => void
  /** Gets the start and the end of an outage. The default writes warnings and errors with `console`. */
  logger?: Logger
}

/** What `peek` looks for. */
export interface PeekOptions {
  queue?: string
  /** These jobs, in any state. */
  ids?: string[]
  /** The default is `ready`. */
  state?: 'ready' | 'blocked' | 'scheduled' | 'claimed' | 'done' | 'dead'
  /** 1 to 1,000, the default is 10. */
  max?: number
  /** Continue behind the job with this id. */
  after?: string
  /** The jobs that finished last come first. */
  newest?: boolean
  key?: string
  /** The jobs whose key, payload, header values or errors contain it. */
  text?: string
  /** The jobs whose errors contain it. */
  error?: string
  headers?: Record<string, string>
}

/** A job as `peek` shows it. */
export interface JobInfo {
  id: string
  queue: string
  state: string
  payload?: Buffer
  result?: Buffer
  priority: number
  attempt: number
  maxAttempts: number
  enqueuedAt?: Date
  runAt?: Date
  claimedAt?: Date
  finishedAt?: Date
  startBefore?: Date
  worker?: string
  key?: string
  group?: string
  headers?: Record<string, string>
  progress?: Progress
  errors: { attempt: number; cause: string; message: string; at: Date }[]
}

/** How far a job was when its worker last reported it. */
export interface Progress {
  readonly done?: number
  readonly total?: number
  /** The data as a JSON value, null if there is none. Throws if the bytes aren't JSON in UTF-8. */
  readonly data: any
  /** The bytes of the data. */
  readonly raw: Buffer
  /** When the sidecar stored it. */
  readonly at: Date
}

/** How a job ended. */
export interface EndedJob {
  readonly id: string
  /** `deleted`: the queue has no such job, or not any more. A deleted job can have been done. */
  readonly state: 'done' | 'dead' | 'deleted'
  /** The result as a JSON value, null if there is none. Throws if the bytes aren't JSON in UTF-8. */
  readonly result: any
  /** The bytes of the result. */
  readonly raw?: Buffer
  /** The message of the last failed attempt. */
  readonly lastError?: string
}

/** The numbers of jobs of a queue. */
export interface QueueStats {
  queue: string
  ready: number
  /** Jobs that wait for others of their group. */
  blocked: number
  scheduled: number
  claimed: number
  dead: number
  done: number
  paused: boolean
  oldestReadyMs: number
  oldestClaimedMs: number
  approx?: boolean
  maxClaimed?: number
  rate?: string
  burst?: number
  groupLimit?: number
  groupOnFailure?: 'skip'
  groupReady?: number
  /** The limit that keeps its ready jobs waiting. */
  limited?: 'max_claimed' | 'rate'
}

/** The job that a batch stores at its end. */
export interface Callback {
  queue: string
  /** Of 64 KiB at most. */
  payload?: Payload
  priority?: number
  headers?: Record<string, string>
  maxAttempts?: number
  timeoutMs?: number
  group?: string
}

/** A batch to open: its callback, and more. */
export type BatchOptions = ({ onSuccess: Callback; onFinish?: undefined } | { onFinish: Callback; onSuccess?: undefined }) & {
  /** A second batch of the callback's queue with it is this one. */
  key?: string
  /** The id of the batch of which the callback is a job. */
  of?: string
}

/** A batch of jobs, which `Client.batch` opened. */
export interface Batch {
  readonly id: string
  /** Stores a job of the batch, as `Client.enqueue` does. */
  enqueue(queue: string, payload?: Payload, options?: JobOptions & CallOptions): Promise<Enqueued>
  /** Stores up to 1,000 jobs of the batch in one transaction: all or none. */
  enqueueMany(jobs: NewJob[], options?: CallOptions): Promise<Enqueued[]>
  /** Closes the batch: it ends when its jobs have ended. A second call does nothing. */
  close(): Promise<void>
  /** Cancels the jobs of the batch, which ends without its callback. The result is how many jobs. */
  cancel(): Promise<number>
  /** Waits until the batch has ended, and returns it, also if the time is over. The default of `waitMs` is a minute. */
  wait(options?: { waitMs?: number } & CallOptions): Promise<EndedBatch>
}

/** A batch, and how many of its jobs were done and failed if it has ended. */
export interface EndedBatch {
  readonly id: string
  readonly state: 'open' | 'closed' | 'ended' | 'cancelling' | 'cancelled'
  readonly done: number
  readonly failed: number
  /** The id of the callback's job, if it is stored. */
  readonly callback?: string
}

/**
 * One connection to a sidecar, which reconnects if it breaks. The whole process can use it at once.
 *
 * It connects at its first call, and that call fails if it can't. Later it reconnects by itself, keeps the leases that it
 * holds, and repeats unanswered requests if that is safe. A client that waits for nothing doesn't keep the process alive.
 */
export class Client {
  constructor(options?: ClientOptions)
  /**
   * Stores a job, and is fulfilled when it is durable. If the reply was lost and the job has no key, it fails with
   * `UnknownOutcome`: the job may have been stored. With a key the client repeats the enqueue. If the database is unavailable, it
   * fails with `Unavailable`: nothing was stored.
   */
  enqueue(queue: string, payload?: Payload, options?: JobOptions & CallOptions): Promise<Enqueued>
  /** Stores up to 1,000 jobs in one transaction: all or none. */
  enqueueMany(jobs: NewJob[], options?: CallOptions): Promise<Enqueued[]>
  /**
   * Declares a schedule, which stores a job at each of its times, over all hosts: `cron` (five fields, or `@daily` and the like) or
   * `everyMs`, a number of whole seconds. A call with the same values changes nothing, so each start of a program can make it. `ignored`:
   * the database has a higher version.
   */
  schedule(name: string, schedule: Schedule & CallOptions): Promise<'created' | 'updated' | 'unchanged' | 'ignored'>
  /**
   * Waits until the jobs have ended, or any one of them, and returns those that have, also if the time is over. A job that its queue
   * doesn't keep has a result only if it ended through this client's sidecar. The default of `waitMs` is a minute.
   */
  wait(queue: string, ids: string[], options?: { any?: boolean; waitMs?: number } & CallOptions): Promise<EndedJob[]>
  /**
   * Stores a job, waits until it has ended, and returns its result. The done job is kept for a minute at least (`retainMs`), so that its
   * result also arrives from another host. Fails with `JobFailed` if the job is dead or gone, and with `NotEnded` if it has not ended
   * after `waitMs`, a minute by default.
   */
  call(queue: string, payload?: Payload, options?: JobOptions & { waitMs?: number } & CallOptions): Promise<any>
  /** Returns the job with an id, of any queue, or nothing if there is none. */
  job(id: string): Promise<JobInfo | undefined>
  /**
   * Opens a batch of jobs. When they have ended, the callback is stored, exactly once over all hosts: `onSuccess` when all jobs are done,
   * `onFinish` when all have ended. Add jobs, and close it.
   */
  batch(options: BatchOptions & CallOptions): Promise<Batch>
  /** Claims ready jobs of the queues, in this order of preference. If none becomes ready, the list is empty. */
  claim(queues: string | string[], options?: ClaimOptions): Promise<Job[]>
  /** Claims one job after another, until the signal is aborted. Settle each one in the loop. */
  jobs(queues: string | string[], options?: Pick<ClaimOptions, 'leaseMs' | 'order' | 'weights' | 'signal'>): AsyncGenerator<Job, void, void>
  /** Settles up to 1,000 jobs as done. Returns the jobs whose leases were lost. The others are settled. */
  ackMany(jobs: Job[], options?: CallOptions): Promise<Job[]>
  /** Settles up to 1,000 jobs as failed, like `job.nack`. Returns the jobs whose leases were lost. */
  nackMany(jobs: Job[], error?: string | Error, options?: NackOptions & CallOptions): Promise<Job[]>
  /** Ends the waiting claims. They return the jobs they have, if any. */
  cancelClaims(): void
  /** Returns the number of jobs in each state, for one queue or for all. */
  stats(queue?: string): Promise<QueueStats[]>
  /** Returns jobs without changing them. A search also has `after`, if there are more jobs. */
  peek(options?: PeekOptions): Promise<JobInfo[] & { after?: string }>
  /** Makes dead jobs ready again. Returns how many. */
  retry(queue: string, ids: string[] | 'all'): Promise<number>
  /** Changes jobs that are ready or scheduled. Returns how many. */
  change(queue: string, ids: string[], changes: Pick<JobOptions, 'priority' | 'delayMs' | 'runAt'>): Promise<number>
  /** Removes jobs in any state but `claimed`. Returns how many. */
  delete(queue: string, ids: string[]): Promise<number>
  /** Takes claimed jobs back from their workers. Returns how many. */
  reclaim(queue: string, ids: string[]): Promise<number>
  /**
   * Ends jobs that wait or run: those with the ids, or the one that has the key. They are dead, or removed with `delete`. Returns how
   * many are cancelled now. A repeated call returns the same number, except with `delete`. `job.signal` of a running job is aborted.
   */
  cancel(queue: string, which: string[] | { key: string }, options?: { delete?: boolean }): Promise<number>
  /** Removes all jobs in a state. Returns how many. */
  purge(queue: string, state: 'ready' | 'blocked' | 'scheduled' | 'done' | 'dead'): Promise<number>
  /** Stops the delivery of a queue on every host. */
  pause(queue: string): Promise<void>
  /** Ends a pause. */
  resume(queue: string): Promise<void>
  /** Changes the limits of a queue, on all hosts together. Those that are left out stay as they are. */
  limit(queue: string, limits: Limits): Promise<void>
  /** Checks that the sidecar answers. It does not check the database. */
  ping(): Promise<void>
  /** Sends any other operation of the protocol with its fields, and returns the fields of the reply, both as on the wire. */
  request(op: string, fields?: Record<string, unknown>): Promise<Record<string, unknown>>
  /**
   * Closes the client: waits for settles, and returns its jobs without using up an attempt. Other calls end with `Closed`. If the
   * sidecar is down, it tries for ten seconds.
   */
  close(): Promise<void>
}

/** A job that was claimed, and the right to settle it. `P` is the type of its payload, which isn't checked. */
export interface Job<P = any> {
  readonly id: string
  readonly queue: string
  /** The right to settle the job. Do not log it. */
  readonly lease: string
  /** From 1. */
  readonly attempt: number
  /** The job is dead if this attempt fails. */
  readonly maxAttempts: number
  /** Grows with each delivery of the job. */
  readonly fence: number
  readonly priority: number
  readonly enqueuedAt: Date
  readonly timeoutMs?: number
  readonly headers: Record<string, string>
  readonly key?: string
  /** The message of the last failed attempt. */
  readonly lastError?: string
  /** What an earlier attempt reported last: continue there. */
  readonly lastProgress?: Progress
  /** The payload as a JSON value, null if it is empty. Throws a `TypeError` if the bytes aren't JSON in UTF-8. */
  readonly payload: P
  /** The bytes of the payload. */
  readonly raw: Buffer
  /** Whether this process has settled it. */
  readonly settled: boolean
  /** Whether the lease is known to be lost. Another worker can have the job, so stop what can be stopped. */
  readonly lost: boolean
  /** Whether the job was cancelled while it runs. Then it is also lost, and no worker gets it: stop the work. */
  readonly cancelled: boolean
  /** Is aborted if the lease is lost, with a `LeaseLost` as its reason, or a `Cancelled` if the job was cancelled. */
  readonly signal: AbortSignal
  /** Adds a job that the ack stores in its transaction. */
  followUp(queue: string, payload?: Payload, options?: JobOptions): void
  /**
   * Settles the job as done. Stores the follow-up jobs in the same transaction and returns their results. `result` is kept with the
   * job if its queue keeps done jobs.
   */
  ack(options?: { result?: Payload; enqueue?: NewJob[] } & CallOptions): Promise<Enqueued[]>
  /** Settles the job as failed. */
  nack(error?: string | Error, options?: NackOptions & CallOptions): Promise<void>
  /** Renews the lease: for so long from now, or for the same time as before. A job without `leaseMs` does not need it. */
  extend(options?: { leaseMs?: number } & CallOptions): Promise<void>
  /**
   * Reports how far the job is, in any unit, and any JSON value or bytes of 4 KiB at most. The sidecar stores the last report of a job
   * about once a second. `lastProgress` of the next attempt has it.
   */
  progress(done?: number, total?: number, data?: Payload, options?: CallOptions): Promise<void>
  toString(): string
}

/** Runs a job. What it returns or throws settles the job. */
export type Handler<P = any> = (job: Job<P>) => unknown

/** The functions of a worker by queue. With `result: true` the returned value is kept with the job. */
export type Handlers = Record<string, Handler | { run: Handler; result?: boolean }>

/** How a worker runs. */
export interface RunOptions {
  /** How many jobs run at once. The default is 8, or with `threads` their number. */
  concurrency?: number
  /** The queues to work. With an object, a queue with a number has so many jobs of its own, and the others share `concurrency`. */
  queues?: string[] | Record<string, number | null>
  /** Ends when no job is ready and the worker's own jobs are done, for cron. */
  drain?: boolean
  /** `behind` (the default) begins the next job before the ack of the last one is answered. `sync` waits for each. */
  ack?: 'behind' | 'sync'
  /** With `rotate` (the default), queues that share a concurrency take turns. With `strict`, they come in their order. */
  order?: 'rotate' | 'strict'
  /** How many turns a queue has where the others have one, as `{mail: 3}`; only of queues that share `concurrency`. */
  weights?: Record<string, number>
  /** Whether SIGTERM and SIGINT end the run. The default is true. */
  signals?: boolean
  /** Runs the jobs in so many threads, which load `module`. */
  threads?: number
}

/** The options of a worker: how it runs, its hooks, and those of its client. */
export interface WorkerOptions extends RunOptions, ClientOptions {
  /** The client to use. Otherwise the worker has its own. */
  client?: Client
  /** Runs before each job's function. If it throws, the job has failed. */
  before?: Handler | Handler[]
  /** Runs after each job's function, before the job is settled. If only the hook throws, the job has failed. */
  after?: ((job: Job, error: unknown) => unknown) | ((job: Job, error: unknown) => unknown)[]
}

/** Functions that run the jobs of queues. */
export class Worker {
  constructor(handlers: Handlers, options?: WorkerOptions)
  readonly client: Client
  readonly jobs: Map<string, { run: Handler; result: boolean }>
  /** Declares a schedule when the worker runs: see `Client.schedule`. */
  schedule(name: string, schedule: Schedule): void
  /**
   * Runs until SIGTERM, SIGINT or `stop`. Then it claims no more, lets the running jobs finish, and is fulfilled. A second signal ends
   * the process at once. It fails if the worker can't go on, and with Unavailable if a settle is
   * unanswered for a minute at the end. `module` is the URL of the file that exports the worker, for `threads`.
   */
  run(options?: RunOptions & { module?: string | URL; logger?: Logger }): Promise<void>
  /** Ends `run`. Running jobs finish. */
  stop(): void
  /** Runs a job's function and its hooks. Returns and throws what the function does. */
  perform(job: Job): Promise<unknown>
}

/** Throw it in a job's function to fail the attempt. It is tried again after `delayMs` or the back-off. */
export class Retry extends Error {
  constructor(message?: string, options?: { delayMs?: number; cause?: unknown })
  readonly delayMs?: number
}

/** Throw it in a job's function to run the job later. This delivery uses up no attempt. */
export class Snooze extends Error {
  constructor(message?: string, options?: { delayMs?: number; cause?: unknown })
  readonly delayMs?: number
}

/** Throw it in a job's function if the job must not be tried again. The job is then dead. */
export class Dead extends Error {
  constructor(message?: string, options?: { cause?: unknown })
}

/** Any error of this package, except for wrong arguments. */
export class QsidecarError extends Error {
  readonly code: string
}

/** No sidecar answered on the socket within the call's time. Nothing was sent. */
export class NotConnected extends QsidecarError {}

/** A job that a call waited for is dead, or gone without a result. */
export class JobFailed extends QsidecarError {
  readonly job: EndedJob
}

/** A job had not ended when the time of the call was over. It goes on. */
export class NotEnded extends QsidecarError {
  /** What its enqueue returned. */
  readonly job: Enqueued
}

/** The client was closed, before or during the call. Or the process exits. */
export class Closed extends QsidecarError {}

/**
 * An ack or nack was sent twice, and the lease was invalid the second time. Either the first request settled the job, or the lease
 * was lost before. Treat the job as settled: if it was not, it is delivered again, as after any lost lease.
 */
export class SettledOrLost extends QsidecarError {
  readonly op: string
  /** Do not log them. */
  readonly leases: string[]
}

/** An error that the sidecar reported. `field` and `index` locate a wrong value, `retryMs` is when to try again. */
export class SidecarError extends QsidecarError {
  readonly field?: string
  readonly index?: number
  readonly retryMs?: number
}

/** The sidecar could not parse the bytes that were sent. This is a bug of the client. */
export class BadFrame extends SidecarError {}

/** The request is invalid, or a rule of the database rejects it. */
export class BadRequest extends SidecarError {}

/** A request, payload or result exceeds the sidecar's limits. Store the data elsewhere and its address in the job. */
export class TooLarge extends SidecarError {}

/** The sidecar does not support the operation. It is possibly older than this client. */
export class UnknownOp extends SidecarError {}

/** The sidecar's config lists its queues, and this queue is not one of them. */
export class UnknownQueue extends SidecarError {}

/** This user is not permitted to do this, or not on this queue: see `allow` in the sidecar's config. */
export class Forbidden extends SidecarError {}

/** The sidecar, or this queue's table, can't do this. */
export class Unsupported extends SidecarError {}

/** The lease is no longer valid, and nothing changed. Another worker possibly has the job. */
export class LeaseLost extends SidecarError {}

/** The job was cancelled while it ran: stop the work. Nothing changes the job any more. */
export class Cancelled extends LeaseLost {}

/** Too many claims of this connection are waiting, or a limit of the sidecar's config is reached. */
export class Busy extends SidecarError {}

/** The sidecar is about to stop and delivers no more jobs. */
export class Draining extends SidecarError {}

/** The sidecar can't reach or write the database now. Nothing was written. */
export class Unavailable extends SidecarError {}

/**
 * The request may or may not have been carried out: a reply did not arrive. `reported` is true if the sidecar reported it, because
 * its connection to the database broke during a commit.
 */
export class UnknownOutcome extends SidecarError {
  readonly reported?: boolean
}

/** An error without a more specific code (see the sidecar's log), or a code that this client does not support. */
export class Internal extends SidecarError {}

/** For unit tests of programs that enqueue: jobs run at once, without a sidecar. */
export namespace testing {
  /** An enqueued job and its result. */
  interface Done {
    job: Job
    queue: string
    payload: any
    /** The job as the wire has it, such as `group` and `delay_ms`. */
    fields: Record<string, unknown>
    /** Whether a worker has a function for its queue. */
    ran: boolean
    /** What the function returned, if the queue's results are kept. */
    result: unknown
    /** What the function threw, also Retry, Snooze and Dead. */
    error: unknown
  }

  /** The enqueued jobs, in order. */
  interface Inline {
    readonly jobs: Done[]
    /** Returns the jobs of one queue. */
    of(queue: string): Done[]
    /** Ends it: enqueues go to the sidecar again. */
    restore(): void
  }

  /**
   * Until `restore`, every enqueue in this process runs its job at once. The given workers run the jobs, or all workers if none is
   * given. A job of a queue without a worker is only recorded. Delays are ignored. Other calls, such as `claim`, still need a sidecar. The enqueue fails with what a function throws
   * (`throws: false`: it is only recorded).
   */
  function inline(options?: { workers?: Worker[]; throws?: boolean }): Inline
}
