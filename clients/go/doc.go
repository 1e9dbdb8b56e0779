// Package qsidecar is the Go client of the qsidecar protocol: enqueue, claim,
// ack and nack jobs through the sidecar of this host.
//
// A Client is one connection. It is safe for concurrent use: requests carry ids
// and are pipelined, so that a waiting claim holds no other call up.
//
//	c, err := qsidecar.Dial(ctx, qsidecar.Options{Socket: "/run/qsidecar/qsidecar.sock"})
//	…
//	jobs, err := c.Claim(ctx, qsidecar.Claim{Queues: []string{"mail"}, Wait: time.Minute})
//	for _, job := range jobs {
//		…
//		err = c.Ack(ctx, job.Lease)
//	}
//
// A Worker does all of that for a Handler, with so many jobs at once, and stops
// gracefully when its context ends.
//
// # When the connection breaks
//
// A Client reconnects in the background, for as long as it is open, with a
// jittered back-off. Calls made meanwhile wait until their context ends. Right
// after reconnecting it binds the session leases it holds (claimed through it and
// not yet settled) to the new connection, so that a restart of the sidecar costs a
// worker nothing, also one that is busy with a job and makes no call. A lease that
// was lost all the same is told to Options.OnLost.
//
// A call that was sent but not answered is sent again after the reconnect, where
// that is safe:
//
//   - a claim: the jobs of a lost answer go back to ready without the client
//     (session leases with the connection or its sidecar, timed leases when they end);
//   - ack, nack and extend: a lease settles once. When the second try says that
//     the lease is lost, the first may have settled it or not: that is a
//     *SettledOrLostError, and lease_lost otherwise;
//   - enqueue, when every job has a key;
//   - what only looks, and what has the same effect twice (stats, peek, retry,
//     delete, purge, pause, resume, ping). The count in the answer is then the second try's.
//
// Everything else (an enqueue without keys, a release) ends with a *BrokenError
// that is ErrUnknownOutcome: it may have been carried out and may not.
package qsidecar
