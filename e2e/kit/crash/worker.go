package crash

import (
	"errors"
	"os"
	"syscall"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/child"
)

// crashWorker is a minimal, correct worker without a client library. It claims one job and acks it.
// If the connection breaks, it reconnects, binds its lease and repeats an ack that got no reply.
type crashWorker struct {
	task workerTask
	hist *history
	acks *os.File // gets a byte for each successful ack
	stop <-chan struct{}

	w    *kit.Wire // nil if it is not connected
	job  *kit.Job  // the claimed job
	done bool      // the work on job is done
	sent bool      // an ack for job was sent and has no reply
}

// workerTask describes a worker process.
type workerTask struct {
	Name, Sidecar, Socket, Queue string

	History   string    // the directory of the histories
	LockWaits bool      // as in Plan
	DiesAt    eventKind // it kills itself at its first event of this kind; empty: it doesn't
}

// workerMode is the mode of worker processes. Their descriptor 3 gets a byte for each successful ack.
var workerMode = child.NewMode("crash", runCrashWorker)

func runCrashWorker(task workerTask, stop <-chan struct{}) error {
	hist, err := openHistory(task.History, task.Name)
	if err != nil {
		return err
	}
	c := &crashWorker{task: task, hist: hist, acks: os.NewFile(3, "acks"), stop: stop}
	for !c.stopped() {
		if c.w == nil {
			if c.w, err = kit.DialWire(task.Socket); err != nil {
				kit.Pace() // the sidecar is down
				continue
			}
			err = c.rebind()
		} else if c.job == nil {
			err = c.claim()
		} else if !c.done {
			err = c.work()
		} else {
			err = c.ack()
		}
		if err := c.reconnectIfBroken(err); err != nil {
			return err
		}
	}
	return nil
}

func (c *crashWorker) stopped() bool {
	select {
	case <-c.stop:
		return c.job == nil
	default:
		return false
	}
}

// brokenConn marks errors after which the worker reconnects.
type brokenConn struct{ error }

// reconnectIfBroken reconnects after a broken connection and returns other errors.
func (c *crashWorker) reconnectIfBroken(err error) error {
	if _, ok := errors.AsType[brokenConn](err); !ok {
		return err
	}
	_ = c.w.Close() // it is already broken
	c.w = nil
	return nil
}

// call sends one request. An error means a broken connection.
func (c *crashWorker) call(req kit.Msg) (*kit.Reply, error) {
	r, err := c.w.Call(req)
	if err != nil {
		return nil, brokenConn{err}
	}
	return r, nil
}

// rebind binds the claimed job to a new connection.
func (c *crashWorker) rebind() error {
	if c.job == nil {
		return nil
	}
	if c.sent {
		return c.ack()
	}
	r, err := c.call(kit.Msg{"op": "extend", "lease": c.job.Lease, "bind": true})
	if err != nil {
		return err
	}
	if r.Error == nil {
		return c.note(Record{What: bound})
	}
	err = c.handleError(r.Error)
	if err == nil && c.job != nil {
		return brokenConn{r.Error} // not bound yet: connect and try again
	}
	return err
}

func (c *crashWorker) claim() error {
	asked := kit.Monotonic()
	r, err := c.call(kit.Msg{"op": "claim", "queue": c.task.Queue, "wait_ms": 500})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return c.handleError(r.Error)
	}
	if len(r.Jobs) == 0 {
		return c.hist.Add(Record{Who: c.task.Name, Via: c.task.Sidecar, What: nothing, Asked: asked})
	}
	c.job, c.done, c.sent = &r.Jobs[0], false, false
	err = c.note(Record{
		What: claimed, Asked: asked,
		Payload: c.job.Payload, Attempt: c.job.Attempt,
	})
	if err == nil && c.task.DiesAt == claimed {
		return c.die()
	}
	return err
}

// die records a kill and kills this process.
func (c *crashWorker) die() error {
	if err := c.hist.Add(Record{Who: c.task.Name, What: Killed}); err != nil {
		return err
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		return err
	}
	select {} // until the signal arrives
}

// work is the work of a job: one request to the sidecar. It takes about as long as an ack, so that
// kills also hit workers with a claimed job.
func (c *crashWorker) work() error {
	r, err := c.call(kit.Msg{"op": "ping"})
	if err == nil && r.Error != nil {
		return r.Error
	}
	c.done = err == nil
	return err
}

func (c *crashWorker) ack() error {
	if err := c.note(Record{What: sending}); err != nil {
		return err
	}
	c.sent = true
	req := kit.Msg{"op": "ack", "lease": c.job.Lease}
	if c.task.DiesAt == sending {
		if err := c.w.Send(req); err != nil {
			return brokenConn{err}
		}
		return c.die()
	}
	r, err := c.call(req)
	if err != nil {
		return err
	}
	if r.Error != nil {
		return c.handleError(r.Error)
	}
	if err := c.note(Record{What: acked}); err != nil {
		return err
	}
	c.job = nil
	_, err = c.acks.Write([]byte{1})
	return err
}

// handleError handles an error as PROTOCOL.md requires. An error that a worker must never see ends it.
func (c *crashWorker) handleError(e *kit.Error) error {
	if e.Conflict(c.task.LockWaits) {
		return e
	}
	switch e.Code {
	case "lease_lost":
		err := c.note(Record{What: lost})
		c.job = nil
		return err
	case "unavailable", "unknown_outcome", "draining", "busy":
		kit.PaceRefused()
		if c.job == nil {
			return c.hist.Add(Record{Who: c.task.Name, What: refused, Code: e.Code})
		}
		return c.note(Record{What: failed, Code: e.Code})
	default:
		return e
	}
}

// note records an event of the claimed job.
func (c *crashWorker) note(r Record) error {
	r.Who, r.Via, r.Job, r.Fence = c.task.Name, c.task.Sidecar, c.job.ID, c.job.Fence
	return c.hist.Add(r)
}
