package adopted

import (
	"context"
	"fmt"
	neturl "net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/adopt"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// changed is a change of a config.
type changed struct {
	what string
	text func(text string) string
}

// changes returns changes that keep a database with claimed jobs open, and changes that open it
// again.
func (b *sharedTable) changes(h adopt.Server) []changed {
	in := func(old, next string) func(string) string {
		return func(text string) string {
			if !strings.Contains(text, old) {
				b.t.Fatalf("no %q in the config", old)
			}
			return strings.Replace(text, old, next, 1)
		}
	}
	lease := "sidecar_timeout: " + kit.Duration(b.s.SidecarTimeout)
	second, err := neturl.Parse(b.s.URL)
	if err != nil {
		b.t.Fatal(err)
	}
	second.Host = forward(b.t, "tcp", h.Addr)
	if second.Scheme == "postgres" {
		second.RawQuery = "" // which contains the server's address
	}
	return []changed{
		{"its attempts", in("max_attempts: 3", "max_attempts: 4")}, // first, so that a row that failed three times does not become dead
		{"a limit", in("queues:\n", "limits: {jobs_per_connection: 1000}\nqueues:\n")},
		{"another queue", in("queues:\n", "queues:\n  plain: {}\n")},
		{"max_transactions", in(lease, lease+", max_transactions: 9")},
		{"max_connections", in(lease, lease+", max_connections: 5")},
		{"the database's name", in("  main: {url", "  primary: {url")},
		{"another adopted one", in("queues:\n", "queues:\n  twin:"+b.Config)},
		{"its address", in(b.s.URL, second.String())},
	}
}

// reload makes the sidecar run with another config.
func (b *sharedTable) reload(text string) {
	b.t.Helper()
	b.sc.WriteConfig(text)
	if r := b.w.Exchange(kit.Msg{"op": "reload"}); r.Error != nil {
		b.t.Fatalf("%v\n%s", r.Error, text)
	}
}

// checkReloadsOfB checks that a job stays claimed during a reload, whatever changed, and that a job
// claimed after it stays claimed when the change is reverted. Both are settled once.
func checkReloadsOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	b := newSharedTable(a, t, h, 60)
	text := b.sc.ReadConfig()
	done, failed := 0, 0
	for _, change := range b.changes(h) {
		jobs := b.claim(2)
		b.reload(change.text(text))
		b.wantHeld(change.what, jobs)
		later := b.claim(2)
		b.reload(text)
		b.wantHeld(change.what+", and back", append(jobs, later...))
		b.w.Must(kit.Msg{"op": "ack", "leases": []string{jobs[0].Lease, later[0].Lease}})
		b.w.Must(kit.Msg{"op": "nack", "lease": jobs[1].Lease, "error": "no luck", "delay_ms": 0})
		b.w.Must(kit.Msg{"op": "nack", "lease": later[1].Lease, "error": "no luck", "dead": true})
		b.w.MustFail("lease_lost", kit.Msg{"op": "ack", "lease": jobs[0].Lease})
		again := b.claim(1)[0]
		if again.ID != jobs[1].ID || again.Attempt != 2 {
			t.Errorf("%s: after a failure comes %+v, want the second attempt of %s", change.what, again, jobs[1].ID)
		}
		b.w.Must(kit.Msg{"op": "ack", "lease": again.Lease})
		done, failed = done+3, failed+1
	}
	got := b.db.Texts(`SELECT concat_ws(' ', count(*), sum(CASE WHEN is_done THEN 1 ELSE 0 END), sum(CASE WHEN failure_count >= 3 THEN 1 ELSE 0 END)) FROM worker_queue`)
	b.same("all, done and dead", got, fmt.Sprintf("60 %d %d", done, failed))
}

// wantHeld checks that the jobs stay claimed and that the own consumers find others.
func (b *sharedTable) wantHeld(what string, jobs []kit.Job) {
	b.t.Helper()
	own := b.own("own", 1)
	if len(own) != 1 {
		b.t.Fatalf("%s: its own consumer finds %v", what, own)
	}
	for _, id := range itemsOf(jobs) {
		if own[0] == id {
			b.t.Errorf("%s: its own consumer takes %s, which a worker has", what, id)
		}
	}
	if _, err := b.c.ExecContext(b.t.Context(), "ROLLBACK"); err != nil {
		b.t.Fatal(err)
	}
	if s := b.w.Stats(b.Name); s.Claimed != len(jobs) {
		b.t.Errorf("%s: %+v, and %d jobs are held", what, s, len(jobs))
	}
}

// checkWorkDuringReloadsOfB changes the config repeatedly while workers of both kinds process the table. Each row
// is processed once, and none fails.
func checkWorkDuringReloadsOfB(t *testing.T, h adopt.Server, a adopt.Table) {
	jobs := kit.Size(6000)
	b := newSharedTable(a, t, h, jobs)
	text, changes := b.sc.ReadConfig(), b.changes(h)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all errgroup.Group
	var own, through atomic.Int64
	all.Go(func() error { return b.runOwnConsumer(ctx, &own) })
	for range 6 {
		conn, err := kit.DialWire(b.sc.Socket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		all.Go(func() error { return worksB(ctx, conn, b.Name, &through) })
	}
	reloads := 0
	for n := 0; own.Load()+through.Load() < int64(jobs); n++ {
		next := text
		if n%2 == 0 {
			next = changes[n/2%len(changes)].text(text)
		}
		b.reload(next)
		reloads++
		seen := through.Load()
		testwait.Until(t, "jobs are worked by each config", func() bool {
			return through.Load() > seen || own.Load()+through.Load() >= int64(jobs)
		})
	}
	stop()
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
	if got := own.Load() + through.Load(); got != int64(jobs) || through.Load() == 0 {
		t.Errorf("%d jobs were worked by its own consumers and %d through the sidecar, of %d", own.Load(), through.Load(), jobs)
	}
	b.same("failures, and what is open", b.db.Texts(`SELECT concat_ws(' ', sum(failure_count), sum(CASE WHEN is_done THEN 0 ELSE 1 END)) FROM worker_queue`), "0 0")
	kit.Figure(t, "%d reloads while %d jobs were worked through the sidecar, each in a transaction held for it, and %d beside it", reloads, through.Load(), own.Load())
}

// worksB claims and acks until ctx ends.
func worksB(ctx context.Context, c *kit.Wire, queue string, worked *atomic.Int64) error {
	for ctx.Err() == nil {
		r, err := c.Call(kit.Msg{"op": "claim", "queue": queue, "wait_ms": 100})
		if err != nil {
			return err
		}
		if r.Error != nil {
			return fmt.Errorf("claim: %w", r.Error)
		}
		for _, j := range r.Jobs {
			if r, err = c.Call(kit.Msg{"op": "ack", "lease": j.Lease}); err != nil {
				return err
			}
			if r.Error != nil {
				return fmt.Errorf("ack of %s: %w", j.ID, r.Error)
			}
			worked.Add(1)
		}
	}
	return nil
}
