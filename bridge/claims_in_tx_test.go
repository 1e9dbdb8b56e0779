package bridge

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/bridge/internal/wirejob"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// apart is a backend with a queue "held", whose claims and writes run outside of the shared transaction.
type apart struct {
	*memory.Backend
	err atomic.Pointer[error] // error of its members; nil: they succeed
}

func (a *apart) Adopted(queue string) bool  { return queue == "held" }
func (a *apart) AdoptedTable(string) string { return "" }

func (a *apart) ClaimsInTx(queue string) bool { return queue == "held" }
func (a *apart) Slow(string) bool             { return false }
func (a *apart) InTx(l backends.Lease) bool   { return l.Token.Number%2 == 1 } // an arbitrary rule

// Commit fails each claim of the queue, and each write about a job with an odd token, with an error of its own.
func (a *apart) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	err := a.err.Load()
	if err == nil {
		return a.Backend.Commit(ctx, b)
	}
	rest, all := b, backends.Results{Writes: make([]backends.WriteResult, len(b.Writes)), Claims: make([]backends.ClaimResult, len(b.Claims))}
	rest.Writes, rest.Claims = nil, nil
	var writes, claims []int
	for i, w := range b.Writes {
		if l := settledLease(w); a.InTx(l) {
			all.Writes[i].Err = *err
		} else {
			writes, rest.Writes = append(writes, i), append(rest.Writes, w)
		}
	}
	for i, c := range b.Claims {
		if a.ClaimsInTx(c.Queues[0].Queue) {
			all.Claims[i].Err = *err
		} else {
			claims, rest.Claims = append(claims, i), append(rest.Claims, c)
		}
	}
	res, failed := a.Backend.Commit(ctx, rest)
	if failed != nil {
		return res, failed
	}
	for at, i := range writes {
		all.Writes[i] = res.Writes[at]
	}
	for at, i := range claims {
		all.Claims[i] = res.Claims[at]
	}
	return all, nil
}

// TestErrorsReachOnlyTheirSender shows that an error of one claim, or of one write, reaches its sender only.
func TestErrorsReachOnlyTheirSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &apart{Backend: memory.New()}
		s := start(t, options(db))
		c, other := s.dial(t), s.dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"held"},{"queue":"held"},{"queue":"q"}]}`)
		down := backends.Unavailable(errors.New("no connection is left"))
		db.err.Store(&down)
		c.refused("unavailable", `{"op":"claim","queue":"held"}`)
		c.send(`{"op":"claim","queue":"held","id":1,"wait_ms":20000}`)
		other.claim1("q")
		db.err.Store(nil)
		if r := c.receive(); len(r.Jobs) != 1 {
			t.Fatalf("who waits gets %+v", r)
		}
	})
}

func mustLease(t *testing.T, text string) backends.Lease {
	t.Helper()
	_, l, ok := wirejob.ParseLease(text)
	if !ok {
		t.Fatalf("%q is no lease", text)
	}
	return l
}

// TestJobInATransactionIsItsSessions shows that a job held in a transaction is settled by the session that claimed it, and can't
// have a timed lease.
func TestJobInATransactionIsItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &apart{Backend: memory.New()}
		s := start(t, options(db))
		c, other := s.dial(t), s.dial(t)
		c.refused("unsupported", `{"op":"claim","queue":"held","lease_ms":1000}`)
		c.refused("unsupported", `{"op":"claim","queues":["q","held"],"lease_ms":1000}`)
		c.call(`{"op":"enqueue","jobs":[{"queue":"held"},{"queue":"held"}]}`)
		j := c.claim1("held")
		for !db.InTx(mustLease(t, j.Lease)) { // until it gets an odd number
			c.call(`{"op":"nack","lease":%q,"snooze":true,"delay_ms":0}`, j.Lease)
			j = c.claim1("held")
		}
		other.refused("unsupported", `{"op":"ack","lease":%q}`, j.Lease)
		other.refused("unsupported", `{"op":"nack","leases":[%q]}`, j.Lease)
		other.refused("unsupported", `{"op":"extend","lease":%q,"bind":true}`, j.Lease)
		c.refused("unsupported", `{"op":"extend","lease":%q}`, j.Lease)
		refused := backends.Refused(errors.New("a trigger rejects it"))
		db.err.Store(&refused)
		c.refused("bad_request", `{"op":"ack","lease":%q}`, j.Lease)
		db.err.Store(nil)
		c.call(`{"op":"ack","lease":%q}`, j.Lease)
	})
}

// settledLease returns the first lease of a write.
func settledLease(w backends.Write) (none backends.Lease) {
	var leases []backends.Lease
	switch w := w.(type) {
	case backends.Ack:
		leases = w.Leases
	case backends.Nack:
		leases = w.Leases
	case backends.Extend:
		leases = w.Leases
	case backends.Release:
		leases = w.Leases
	}
	if len(leases) == 0 {
		return none
	}
	return leases[0]
}
