package kit

import (
	"errors"
	"os"
)

// crashWorker is a worker as a careful bare client writes it: it claims one job,
// acks it, and when the connection breaks it connects again, binds the lease it
// holds, and sends an ack again that was not answered.
type crashWorker struct {
	task WorkerTask
	hist *history
	acks *os.File // gets a byte for each ack answered ok
	stop <-chan struct{}

	w    *Wire // nil: not connected
	job  *Job  // held
	done bool  // the work on job is done
	sent bool  // an ack for job was sent and not answered
}

func runCrashWorker(task WorkerTask, acks *os.File, stop <-chan struct{}) error {
	hist, err := openHistory(task.History, task.Name)
	if err != nil {
		return err
	}
	c := &crashWorker{task: task, hist: hist, acks: acks, stop: stop}
	for !c.stopped() {
		if c.w == nil {
			if c.w, err = DialWire(task.Socket); err != nil {
				Pace() // the sidecar is down
				continue
			}
			err = c.again()
		} else if c.job == nil {
			err = c.claim()
		} else if !c.done {
			err = c.work()
		} else {
			err = c.ack()
		}
		if err := c.mind(err); err != nil {
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

// brokenConn marks the errors that mean: connect again.
type brokenConn struct{ error }

// mind connects again after a broken connection, and passes other errors on.
func (c *crashWorker) mind(err error) error {
	if _, ok := errors.AsType[brokenConn](err); !ok {
		return err
	}
	_ = c.w.Close() // it is broken already
	c.w = nil
	return nil
}

// call is one request. An error is a broken connection.
func (c *crashWorker) call(req Msg) (*Reply, error) {
	r, err := c.w.Call(req)
	if err != nil {
		return nil, brokenConn{err}
	}
	return r, nil
}

// again takes up the held job on a new connection.
func (c *crashWorker) again() error {
	if c.job == nil {
		return nil
	}
	if c.sent {
		return c.ack()
	}
	r, err := c.call(Msg{"op": "extend", "lease": c.job.Lease, "bind": true})
	if err != nil {
		return err
	}
	if r.Error == nil {
		return c.note(Record{What: bound})
	}
	err = c.refused(r.Error)
	if err == nil && c.job != nil {
		return brokenConn{r.Error} // not bound yet: connect and try again
	}
	return err
}

func (c *crashWorker) claim() error {
	asked := Monotonic()
	r, err := c.call(Msg{"op": "claim", "queue": c.task.Queue, "wait_ms": 500})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return c.refused(r.Error)
	}
	if len(r.Jobs) == 0 {
		return nil
	}
	c.job, c.done, c.sent = &r.Jobs[0], false, false
	return c.note(Record{
		What: claimed, Asked: asked, Via: c.task.Sidecar,
		Payload: c.job.Payload, Attempt: c.job.Attempt,
	})
}

// work is what a job asks for here: a word with the sidecar. It takes about as
// long as an ack, so that kills hit workers with a job in their hands as well.
func (c *crashWorker) work() error {
	r, err := c.call(Msg{"op": "ping"})
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
	r, err := c.call(Msg{"op": "ack", "lease": c.job.Lease})
	if err != nil {
		return err
	}
	if r.Error != nil {
		return c.refused(r.Error)
	}
	if err := c.note(Record{What: acked}); err != nil {
		return err
	}
	c.job = nil
	_, err = c.acks.Write([]byte{1})
	return err
}

// refused acts on an error as design.md §4 says; one that a worker never should
// see ends it.
func (c *crashWorker) refused(e *Error) error {
	if e.conflict() {
		return e
	}
	switch e.Code {
	case "lease_lost":
		err := c.note(Record{What: lost})
		c.job = nil
		return err
	case "unavailable", "unknown_outcome", "draining", "busy":
		Pace()
		if c.job == nil {
			return nil
		}
		return c.note(Record{What: failed, Code: e.Code})
	default:
		return e
	}
}

// note records what happened to the held job.
func (c *crashWorker) note(r Record) error {
	r.Who, r.Job, r.Fence = c.task.Name, c.job.ID, c.job.Fence
	return c.hist.Add(r)
}
