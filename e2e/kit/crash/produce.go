package crash

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// production enqueues while the workers work.
type production struct {
	mu    sync.Mutex
	lossy bool
	jobs  map[string]string // id → payload; if lossy, payload → payload, because an id can be used again
	done  chan struct{}
	err   error
	group errgroup.Group
}

func (p *production) ids() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.jobs
}

// over reports whether all jobs are enqueued, or the error that prevents it.
func (p *production) over() (ended bool, err error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// produce enqueues in batches. Without Backlog there are enough at once for a sidecar to have two commits of them under
// way. Each job has a key, so that an enqueue without a reply can be repeated.
func (r *Run) produce() *production {
	batch, producers := 100, 4*len(r.Sidecars)
	if r.Backlog > 0 {
		batch, producers = 10, max(2, len(r.Sidecars))
	}
	p := &production{lossy: r.Lossy, jobs: map[string]string{}, done: make(chan struct{})}
	stop := make(chan struct{})
	for i := range producers {
		p.group.Go(func() error {
			sc := r.Sidecars[i%len(r.Sidecars)]
			for from := i * batch; from < r.Jobs; from += producers * batch {
				if err := r.enqueue(p, sc, from, min(from+batch, r.Jobs), stop); err != nil {
					return err
				}
			}
			return nil
		})
	}
	go func() {
		p.err = p.group.Wait()
		close(p.done)
	}()
	r.T.Cleanup(func() { close(stop); <-p.done })
	return p
}

// enqueue stores jobs from…to and repeats until it gets a reply.
func (r *Run) enqueue(p *production, sc *kit.Sidecar, from, to int, stop <-chan struct{}) error {
	var jobs []kit.Msg
	for n := from; n < to; n++ {
		jobs = append(jobs, kit.Msg{"queue": r.Queue, "payload": fmt.Sprint("job ", n), "key": fmt.Sprint("k", n)})
	}
	r.keepBacklog(from)
	for {
		asked := kit.Monotonic()
		reply, err := enqueueOnce(sc.Socket, jobs)
		if err == nil && reply.Error == nil {
			return errors.Join(p.addReplies(reply.Jobs, jobs), r.noteEnqueued(sc.Name, asked, reply.Jobs, jobs))
		}
		if err == nil {
			err = r.Hist.Add(Record{Who: "producer", What: refused, Code: reply.Error.Code})
		}
		if reply != nil && (reply.Error.Conflict(r.LockWaits) || !reply.Error.Transient()) {
			return reply.Error
		}
		select {
		case <-stop:
			return fmt.Errorf("stopped; the last answer was %v, %w", reply, err)
		default:
			kit.PaceRefused()
		}
	}
}

// keepBacklog waits until job n is due. A job whose ack was lost or got no reply is never counted as acked. So it waits
// only for as long as acks can be expected, and then no longer counts the missing ones. No acks are counted while a killer is at work.
func (r *Run) keepBacklog(n int) {
	for paces := 0; r.Backlog > 0; paces++ {
		missing := int64(n-r.Backlog) - r.acked.Load() - r.missed.Load()
		if missing <= 0 {
			return
		}
		if r.striking.Load() {
			paces = 0
		}
		if paces == 100 {
			r.missed.Add(missing)
		}
		kit.Pace()
	}
}

func enqueueOnce(socket string, jobs []kit.Msg) (*kit.Reply, error) {
	w, err := kit.DialWire(socket)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := w.SetDeadline(testwait.Deadline()); err != nil {
		return nil, err
	}
	r, err := w.Call(kit.Msg{"op": "enqueue", "jobs": jobs})
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return r, err
}

func (p *production) addReplies(stored []kit.Job, sent []kit.Msg) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(stored) != len(sent) {
		return fmt.Errorf("%d jobs enqueued, %d answered", len(sent), len(stored))
	}
	for i, j := range stored {
		if p.lossy {
			j.ID = sent[i]["payload"].(string)
		}
		if before, ok := p.jobs[j.ID]; ok {
			return fmt.Errorf("the id %s belongs to %q and to %q", j.ID, before, sent[i]["payload"])
		}
		p.jobs[j.ID] = sent[i]["payload"].(string)
	}
	return nil
}

// noteEnqueued records the reply to an enqueue.
func (r *Run) noteEnqueued(sidecar string, asked int64, stored []kit.Job, sent []kit.Msg) (err error) {
	at := kit.Monotonic()
	for i, job := range stored {
		err = errors.Join(err, r.Hist.Add(Record{
			At: at, Asked: asked, Who: "producer", Via: sidecar, What: enqueued, Job: job.ID, Payload: sent[i]["payload"].(string),
		}))
	}
	return err
}
