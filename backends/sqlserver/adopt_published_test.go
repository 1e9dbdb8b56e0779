package sqlserver

import (
	"fmt"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/guess"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// TestAdoptedLaravel shows Laravel's table with the config that is proposed for it. Its times
// are whole seconds, and one of them shows a claim.
func TestAdoptedLaravel(t *testing.T) {
	t.Parallel()
	const now = "floor(extract(epoch FROM clock_timestamp()))::bigint"
	k := adopting(t, nil, `INSERT INTO dbo.jobs (queue, payload, attempts, reserved_at, available_at, created_at) VALUES
		('default', 'one', 0, NULL, `+now+`, `+now+`), ('default', 'own', 1, `+now+`, `+now+`, `+now+`), ('default', 'later', 0, NULL, `+now+` + 3600, `+now+`), ('default', 'two', 0, NULL, `+now+`, `+now+`)`)
	p, err := guess.Table(t.Context(), k.engine, "", "jobs")
	if err != nil {
		t.Fatal(err)
	}
	if k.Store, err = adopted.New(t.Context(), k.engine, map[string]mapping.Table{"q": p.Table}); err != nil {
		t.Fatal(err)
	}
	if p.Table.Unit != mapping.Seconds || p.Table.OnAck != mapping.Delete || p.Table.Where["queue"].Text != "default" {
		t.Errorf("%+v", p.Table)
	}
	jobs := k.claim("q", 5, 0)
	if len(jobs) != 2 || jobs[0].ID != "1" || jobs[1].ID != "4" || string(jobs[1].Payload) != "two" || time.Since(jobs[0].EnqueuedAt) > 30*time.Minute {
		t.Fatalf("%+v", jobs)
	}
	k.shows("SELECT concat_ws('|', id, attempts, reserved_at BETWEEN "+now+" - 600 AND "+now+") FROM dbo.jobs ORDER BY id", "1|1|t", "2|1|t", "3|0", "4|1|t")
	k.write(backends.Ack{Leases: leasesOf(jobs[0])}, 0)
	k.write(backends.Nack{Leases: leasesOf(jobs[1]), Error: "no"}, 0)
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: []byte("three"), Delay: time.Hour}, {Queue: "q", RunAt: time.Unix(1_767_323_045, 1_000_000)}}}, 0)
	k.shows("SELECT concat_ws('|', id, attempts, reserved_at, available_at > "+now+" + 3000) FROM dbo.jobs WHERE id > 2 ORDER BY id", "3|0|t", "4|1|t", "5|0|t", "6|0|f")
	k.shows("SELECT available_at::text FROM dbo.jobs WHERE id = 6", "1767323046")
	if st, err := k.Stats(t.Context(), "q"); err != nil || st[0].Ready != 1 || st[0].Scheduled != 3 || st[0].Claimed != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	k.isTSQL("laravel")
}

// TestAdoptedLimits shows a limit of attempts for each row, times in milliseconds since 1970,
// and the time at which a job became dead.
func TestAdoptedLimits(t *testing.T) {
	t.Parallel()
	m := mapping.Table{
		Name: "limited", OnAck: mapping.Delete, Unit: mapping.Milliseconds, MaxAttempts: 3, StuckAfter: time.Hour, RetainDead: time.Hour,
		Columns: map[mapping.Role][]string{
			mapping.ID: {"id"}, mapping.Attempts: {"tries"}, mapping.OwnLimit: {"max_tries"}, mapping.ClaimedAt: {"locked_at"}, mapping.FailedAt: {"failed_at"}, mapping.RunAt: {"run_at"},
		},
	}
	const now = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
	k := adopting(t, map[string]mapping.Table{"q": m}, `INSERT INTO dbo.limited (max_tries, locked_at, failed_at) VALUES (1, NULL, NULL), (NULL, NULL, NULL), (5, NULL, NULL), (0, NULL, NULL),
		(1, `+now+` - 3700000, NULL), (1, NULL, `+now+` - 3700000)`)
	k.sweep(backends.Maintenance{Waiting: []string{"q"}, Prune: true})
	for attempt := 1; attempt <= 6; attempt++ {
		got := ""
		jobs := k.claim("q", 9, 0)
		for _, j := range jobs {
			got += fmt.Sprintf("%s/%d ", j.ID, j.MaxAttempts)
		}
		if want := []string{"1/1 2/3 3/5 4/3 5/1 ", "2/3 3/5 4/3 ", "2/3 3/5 4/3 ", "3/5 ", "3/5 ", ""}[attempt-1]; got != want {
			t.Fatalf("attempt %d: %s, want %s", attempt, got, want)
		}
		k.write(backends.Nack{Leases: leasesOf(jobs...), HasDelay: true}, 0)
	}
	k.shows("SELECT concat_ws('|', id, tries, locked_at, abs(failed_at - "+now+") < 600000) FROM dbo.limited ORDER BY id", "1|1|t", "2|3|t", "3|5|t", "4|3|t", "5|1|t")
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", MaxAttempts: 9}}}, 0)
	if j := k.one("q"); j.MaxAttempts != 9 {
		t.Errorf("%+v", j)
	}
	if views := k.peek(backends.Peek{Queue: "q", State: backends.StateDead, Max: 9}); len(views) != 5 || views[2].MaxAttempts != 5 || views[2].FinishedAt.IsZero() {
		t.Errorf("%+v", views)
	}
	k.isTSQL("limited")
}
