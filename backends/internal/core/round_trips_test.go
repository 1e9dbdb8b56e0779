package core_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
)

// counting is the example engine with other traits. It counts the round trips of the transactions before their COMMITs.
type counting struct {
	core.Store
	driver
	traits core.Traits
	sure   bool // its acks end all claims or fail
	trips  int
}

func (c *counting) Traits() core.Traits { return c.traits }

func (c *counting) Transact(ctx context.Context, o core.TxOptions, f func(ctx context.Context, tx core.Tx) error) error {
	return c.driver.Transact(ctx, o, func(ctx context.Context, t core.Tx) error { return f(ctx, &countingTx{tx: t.(*tx), c: c}) })
}

type countingTx struct {
	*tx
	c       *counting
	answers []func() // about changes, for the next Flush
	queued  bool     // a statement, since the last Flush: a Flush without one sends nothing
}

func (c *countingTx) Insert(jobs []*core.NewJob) bool {
	c.queued = true
	return c.tx.Insert(jobs)
}

func (c *countingTx) Lock(ids []int64, found func(*core.Row)) {
	c.queued = true
	c.tx.Lock(ids, found)
}

func (c *countingTx) Claim(r *core.Run) {
	c.queued = true
	c.tx.Claim(r)
}

func (c *countingTx) Flush(ctx context.Context) error {
	if c.queued {
		c.c.trips++
	}
	c.queued = false
	for _, f := range c.answers {
		f()
	}
	c.answers = nil
	return c.tx.Flush(ctx)
}

func (c *countingTx) Ack(leases []core.Lease, ended func(i int)) bool {
	c.queued = true
	if !c.c.sure {
		return c.tx.Ack(leases, ended)
	}
	n := 0
	c.tx.Ack(leases, func(int) { n++ })
	if n < len(leases) {
		c.err = core.ErrNotAll
	}
	return true
}

func (c *countingTx) Change(rows []*core.Row, changed func(*core.Row), gaveBack func(queue string, returns int64)) {
	c.queued = true
	c.tx.Change(rows, func(*core.Row) {}, gaveBack)
	for _, r := range rows {
		c.answers = append(c.answers, func() { changed(r) })
	}
}

// TestRoundTrips counts the round trips of each kind of batch: the table beside Commit.writes.
func TestRoundTrips(t *testing.T) {
	t.Parallel()
	const host = 7
	policy := func(queue string) backends.Policy {
		p := backends.Policy{Queue: queue, MaxAttempts: 3, Backoff: time.Second, BackoffMax: time.Second}
		if queue == "kept" {
			p.RetainDone = time.Hour
		}
		return p
	}
	for _, silent := range []bool{false, true} {
		for _, sure := range []bool{false, true} {
			t.Run(fmt.Sprintf("silent=%v/sure=%v", silent, sure), func(t *testing.T) {
				t.Parallel()
				db := &database{t: newTables(), now: time.Now(), refuse: map[string]string{}}
				c := &counting{driver: driver{&engine{db: db}}, traits: core.Traits{Silent: silent}, sure: sure}
				c.engine.Init(c, "counting", slog.New(slog.DiscardHandler))
				store := &c.engine.Store
				if _, err := c.Heartbeat(t.Context(), backends.Heartbeat{Sidecar: host, Kind: backends.HeartbeatJoin, Timeout: time.Hour}); err != nil {
					t.Fatal(err)
				}
				number := uint64(0)
				claim := func(queue string, n int) backends.Claim {
					cl := backends.Claim{Queues: []backends.Policy{policy(queue)}, MaxBytes: 1 << 20, MaxPayload: 1 << 20}
					for range n {
						number++
						cl.Slots = append(cl.Slots, backends.Slot{Token: backends.Token{Sidecar: host, Number: number}})
					}
					return cl
				}
				commit := func(b backends.CommitContent) backends.Results {
					t.Helper()
					b.Sidecar = host
					res, err := store.Commit(t.Context(), b)
					if err != nil {
						t.Fatal(err)
					}
					return res
				}
				held := func(queue string) backends.Lease {
					t.Helper()
					res := commit(backends.CommitContent{Writes: []backends.Write{backends.Enqueue{Jobs: []backends.NewJob{{Queue: queue}}}}, Claims: []backends.Claim{claim(queue, 1)}})
					return res.Claims[0].Jobs[0].Lease()
				}
				enqueue := backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q"}}}
				ack := func(queue string) backends.Write { return backends.Ack{Leases: []backends.Lease{held(queue)}} }
				follow := func() backends.Write {
					return backends.Ack{Leases: []backends.Lease{held("q")}, Enqueue: []backends.NewJob{{Queue: "q"}}}
				}
				nack := func() backends.Write { return backends.Nack{Leases: []backends.Lease{held("q")}} }
				of := func(writes ...backends.Write) backends.CommitContent { return backends.CommitContent{Writes: writes} }
				claiming := func(b backends.CommitContent) backends.CommitContent {
					b.Claims = []backends.Claim{claim("q", 1)}
					return b
				}
				unsure, more := 1, 0 // round trips for the answers: which acks are done; that nothing was passed over
				if sure {
					unsure = 0
				}
				if silent {
					more = 1
				}
				for _, kind := range []struct {
					name  string
					batch func() backends.CommitContent
					want  int
				}{
					{"new jobs", func() backends.CommitContent { return of(enqueue, enqueue) }, more},
					{"acks", func() backends.CommitContent { return of(ack("q"), ack("q")) }, unsure},
					{"new jobs and acks", func() backends.CommitContent { return of(enqueue, ack("q")) }, max(unsure, more)},
					{"a nack", func() backends.CommitContent { return of(nack()) }, 1 + more},
					{"an extend", func() backends.CommitContent {
						return of(backends.Extend{Leases: []backends.Lease{held("q")}, Lease: time.Minute})
					}, 1 + more},
					{"an ack that stores jobs", func() backends.CommitContent { return of(follow()) }, 1 + more},
					{"a claim", func() backends.CommitContent { return claiming(of()) }, 1},
					{"claims, new jobs and acks", func() backends.CommitContent { return claiming(of(enqueue, ack("q"))) }, 1},
					{"claims and a nack", func() backends.CommitContent { return claiming(of(nack(), enqueue)) }, 2},
					{"claims and an ack that stores jobs", func() backends.CommitContent { return claiming(of(follow())) }, 2},
				} {
					b := kind.batch()
					c.trips = 0
					commit(b)
					if c.trips != kind.want {
						t.Errorf("%s: %d round trips before the COMMIT, want %d", kind.name, c.trips, kind.want)
					}
				}
				if !sure { // otherwise the transaction is tried again without the statement for all acks
					for _, claims := range []bool{false, true} {
						for _, after := range []bool{false, true} { // an ack that needed its row
							b := of(ack("q"), ack("kept"))
							want := 2 + more
							if claims {
								b = claiming(b)
							}
							if store.Forget(); after {
								commit(of(ack("kept")))
								want--
							}
							c.trips = 0
							if commit(b); c.trips != want {
								t.Errorf("acks of which one keeps its job, with claims: %v, after such an ack: %v: %d round trips, want %d", claims, after, c.trips, want)
							}
						}
					}
				}
			})
		}
	}
}
