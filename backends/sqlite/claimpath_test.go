package sqlite

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// BenchmarkClaimPath measures claims with the acks of the previous claim, n to a
// commit. It alternates between three tables: a small one; one with 10⁵ ready, 10⁵
// scheduled and 10⁵ dead rows; and a small one while another connection keeps a snapshot
// from before the first job, so that the WAL can only grow. The ratios are relative to the
// small table's rate in the same turns. "last" is the ratio of the last quarter of the turns.
//
//	go test ./backends/sqlite -run '^$' -bench ClaimPath -benchtime 1x
func BenchmarkClaimPath(b *testing.B) {
	for _, c := range []struct{ n, jobs int }{{1, 2_000}, {32, 20_000}} {
		b.Run(fmt.Sprint(c.n), func(b *testing.B) {
			for b.Loop() {
				claimPath(b, c.n, c.jobs)
			}
		})
	}
}

const turns = 20

func claimPath(b *testing.B, n, jobs int) {
	tables := []*claimer{newClaimer(b, "small"), newClaimer(b, "crowded"), newClaimer(b, "snapshot")}
	crowd(b, tables[1].Store)
	release := hold(b, tables[2].Store)
	for turn := range turns {
		for _, t := range tables {
			t.turn(b, n, jobs/turns, turn >= turns*3/4)
		}
	}
	for i, t := range tables {
		b.ReportMetric(t.all.rate(), t.name+"-jobs/s")
		if i > 0 {
			b.ReportMetric(t.all.rate()/tables[0].all.rate(), t.name+"-ratio")
			b.ReportMetric(t.last.rate()/tables[0].last.rate(), t.name+"-last-ratio")
		}
	}
	snapshot := tables[2]
	b.ReportMetric(snapshot.wal(b), "snapshot-WAL-MiB")
	release()
	began := b.Elapsed()
	fill(b, snapshot.Store, 1) // its commit copies the WAL back
	b.ReportMetric(float64((b.Elapsed() - began).Milliseconds()), "catch-up-ms")
	again := *snapshot
	again.all = pace{}
	again.turn(b, n, jobs/turns, false)
	b.ReportMetric(again.wal(b), "after-WAL-MiB")
}

// pace is a number of jobs and the time that they took.
type pace struct {
	jobs int
	took time.Duration
}

func (p *pace) add(n int, d time.Duration) { p.jobs, p.took = p.jobs+n, p.took+d }

func (p *pace) rate() float64 { return float64(p.jobs) / p.took.Seconds() }

type claimer struct {
	*Store
	name      string
	number    uint64
	last, all pace
	held      []backends.Lease
}

func newClaimer(b *testing.B, name string) *claimer {
	c := &claimer{Store: fresh(b), name: name}
	if _, err := c.Heartbeat(b.Context(), backends.Heartbeat{Sidecar: 1, Timeout: time.Hour}); err != nil {
		b.Fatal(err)
	}
	return c
}

// turn stores jobs, which it does not measure, and claims and acks as many.
func (c *claimer) turn(b *testing.B, n, jobs int, last bool) {
	fill(b, c.Store, jobs)
	began := b.Elapsed()
	for done := 0; done < jobs; done += n {
		cl := backends.Claim{Queues: []backends.Policy{{Queue: "q", MaxAttempts: 20}}, MaxBytes: 1 << 22, MaxPayload: 1 << 20}
		for range min(n, jobs-done) {
			c.number++
			cl.Slots = append(cl.Slots, backends.Slot{Token: backends.Token{Sidecar: 1, Number: c.number}, Prefetch: true})
		}
		r, err := c.Commit(b.Context(), backends.CommitContent{
			Sidecar: 1, Writes: []backends.Write{backends.Ack{Leases: c.held}}, Claims: []backends.Claim{cl},
		})
		if err != nil || len(r.Writes[0].Lost) != 0 || len(r.Claims[0].Jobs) != len(cl.Slots) {
			b.Fatalf("%v, %+v", err, r)
		}
		c.held = c.held[:0]
		for _, j := range r.Claims[0].Jobs {
			c.held = append(c.held, backends.Lease{Job: j.ID, Token: j.Token})
		}
	}
	took := b.Elapsed() - began
	c.all.add(jobs, took)
	if last {
		c.last.add(jobs, took)
	}
}

func (c *claimer) wal(b *testing.B) float64 {
	info, err := os.Stat(c.path + "-wal")
	if err != nil {
		b.Fatal(err)
	}
	return float64(info.Size()) / (1 << 20)
}

// crowd stores 10⁵ jobs in each of three states.
func crowd(b *testing.B, s *Store) {
	tomorrow := time.Now().Add(24 * time.Hour).UnixMilli()
	numbers := `WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 100000)`
	for range 100 {
		fill(b, s, 1000)
	}
	if err := exec(b, s, fmt.Sprintf(`%[1]s INSERT INTO qsidecar_jobs (queue, payload, run_at) SELECT 'q', zeroblob(100), %[2]d + i FROM c;
		%[1]s INSERT INTO qsidecar_jobs (queue, state, position, finished_at, attempts, last_error, payload)
			SELECT 'q', 'dead', i, i, 3, 'out of luck', zeroblob(100) FROM c`, numbers, tomorrow)); err != nil {
		b.Fatal(err)
	}
	st, err := s.Stats(b.Context(), "q")
	if err != nil || st[0].Ready != 100_000 || st[0].Scheduled != 100_000 || st[0].Dead != 100_000 {
		b.Fatalf("%+v, %v", st, err)
	}
}

// hold keeps a snapshot open as a report or a backup does, until release.
func hold(b testing.TB, s *Store) (release func()) {
	c, err := connect(s.path)
	if err != nil {
		b.Fatal(err)
	}
	if err := c.once(`BEGIN; SELECT count(*) FROM qsidecar_jobs`); err != nil {
		b.Fatal(err)
	}
	return func() {
		if err := c.once("COMMIT"); err != nil {
			b.Error(err)
		}
		if err := c.close(); err != nil {
			b.Error(err)
		}
	}
}
