// Package qsidecar is the Go client of the qsidecar protocol. It enqueues, claims, acks and nacks
// jobs through the sidecar of this host.
//
// A Client is one connection. It is safe for concurrent use: requests have ids and are pipelined,
// so a waiting claim delays no other call.
//
//	c, err := qsidecar.Dial(ctx, qsidecar.Options{Socket: "/run/qsidecar/qsidecar.sock"})
//	…
//	jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{"mail"}, Wait: time.Minute})
//	for _, job := range jobs {
//		…
//		err = c.Ack(ctx, job.Lease)
//	}
//
// A Worker does all of this for a Handler, with several jobs at once. It doesn't wait for the reply to
// an ack before it begins the next job. It stops gracefully when its context ends.
//
// # If the connection breaks
//
// A Client reconnects in the background, with a jittered back-off, for as long as it is open. Calls
// wait in the meantime until their context ends. After a reconnect, the client binds the session
// leases that it holds (claimed through it and not yet settled) to the new connection. A worker
// therefore loses nothing if the sidecar restarts, even if it is busy with a job and makes no call.
// If a lease is lost, the client calls Options.OnLost.
//
// The client repeats a call that was sent and not answered, if that is safe:
//
//   - a claim: the jobs of a lost reply become ready again without the client
//     (session leases with the connection or its sidecar, timed leases when they end);
//   - ack, nack and extend: a lease settles once. If the second reply reports the
//     lease as lost, the first request may have settled it. The error is then a
//     *SettledOrLostError, and lease_lost otherwise;
//   - enqueue, if every job has a key;
//   - requests that only read, or that can be repeated (stats, peek, retry, delete,
//     purge, pause, resume, ping). A count in the reply is then that of the second request.
//
// Every other call (an enqueue without keys, a reclaim) ends with a *BrokenError that is
// ErrUnknownOutcome: the sidecar may or may not have carried it out.
//
// # Where to start
//
// client.go has the Client, ops.go its calls, worker.go the Worker, settler.go its settles in the background. Inside, call.go is the queue of
// calls, connection.go the reconnects, leases.go the held leases and retry.go the repetitions. The
// package uses package protocol and the standard library.
package qsidecar
