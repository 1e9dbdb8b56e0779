package bridge

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// pickyDB refuses claims with a slot of the worker "mallory". A real engine also finds the worker by itself.
type pickyDB struct{ *faulty }

func (p pickyDB) Commit(ctx context.Context, b backends.CommitContent) (backends.Results, error) {
	refused := map[int]bool{}
	b.Claims = slices.Clone(b.Claims)
	for n := range b.Claims {
		if slices.ContainsFunc(b.Claims[n].Slots, func(s backends.Slot) bool { return s.Worker == "mallory" }) {
			refused[n], b.Claims[n].Slots = true, nil
		}
	}
	res, err := p.faulty.Commit(ctx, b)
	for n := range refused {
		if err == nil {
			res.Claims[n].Err = &backends.SlotError{Worker: "mallory", Err: backends.Refused(errors.New("a CHECK of the worker's name"))}
		}
	}
	return res, err
}

// TestRefusedWorkerHurtsNoOther: if the database refuses the name of one worker, only its claims fail. Those that share a
// commit with them get their jobs.
func TestRefusedWorkerHurtsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := pickyDB{&faulty{Backend: memory.New()}}
		s := start(t, options(db))
		workers := []string{"alice", "mallory", "bob"}
		for range 3 {
			var all []*client
			for _, name := range workers {
				c := s.dial(t)
				c.call(`{"op":"hello","worker":%q}`, name)
				all = append(all, c)
			}
			producer := s.dial(t)
			gate := make(chan struct{})
			db.block.Store(&gate)
			producer.send(`{"op":"claim","queues":["other"]}`) // its commit delays the others, so that they share the next one
			synctest.Wait()
			for _, c := range all {
				c.send(`{"op":"claim","queues":["q"],"wait_ms":20000,"id":1}`)
			}
			synctest.Wait()
			db.block.Store(nil)
			close(gate)
			producer.receive()
			began := time.Now()
			producer.call(`{"op":"enqueue","queue":"q"}`)
			producer.call(`{"op":"enqueue","queue":"q"}`)
			for i, c := range all {
				r := c.receive()
				if workers[i] != "mallory" {
					if !r.OK || len(r.Jobs) != 1 || time.Since(began) > time.Second {
						t.Errorf("%s got %+v after %v", workers[i], r, time.Since(began))
					}
					continue
				}
				if r.OK || r.Error.Code != "bad_request" || !strings.Contains(r.Error.Message, "a CHECK of the worker's name") {
					t.Errorf("%s got %+v", workers[i], r)
				}
			}
			for _, c := range all {
				c.close()
			}
		}
	})
}
