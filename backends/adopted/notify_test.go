package adopted_test

import (
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestNotifyNeedsPostgreSQL: notify is a misfit on other engines.
func TestNotifyNeedsPostgreSQL(t *testing.T) {
	check := func(t *testing.T, k *kit, want string) {
		t.Helper()
		m := tableE()
		m.Notify = "jobs"
		_, wrong, err := adopted.Check(t.Context(), k.Engine, map[string]mapping.Table{"e": m})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, w := range wrong {
			got += w.Error()
		}
		if !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%q, want %q", got, want)
		}
	}
	onEach(t, func(t *testing.T, on *product) {
		k := on.newKit(t, on.systemE, nil)
		if k.c == nil {
			check(t, k, "queues.e.notify: "+k.Info().Engine+" sends no notifications: remove it")
			return
		}
		check(t, k, "")
	})
	check(t, newSQLiteKit(t, sqliteSystemE, nil), "queues.e.notify: sqlite sends no notifications")
}

// TestFreedElsewhere: other sidecars are notified of adopted jobs that this one made ready, in
// whichever way.
func TestFreedElsewhere(t *testing.T) {
	t.Parallel()
	url := server.Database(t)
	k := &kit{T: t, url: url, c: connect(t, url)}
	k.sql(systemE + "; ALTER TABLE my_queue ADD started timestamptz")
	m := tableE()
	m.Notify, m.Columns[mapping.ClaimedAt], m.StuckAfter = "jobs", []string{"started"}, time.Hour
	store := func() *adopted.Store {
		engine, err := postgres.Open(t.Context(), postgres.Options{URL: url, Notify: true})
		if err != nil {
			t.Fatal(err)
		}
		closed(t, engine)
		s, err := adopted.New(t.Context(), pgdiagnose.New(engine), map[string]mapping.Table{"e": m})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	k.Store = store()
	k.heartbeat(me, backends.HeartbeatJoin, sidecarTimeout)
	queues, ok := store().Notifications(testwait.Context(t))
	if !ok || <-queues != "" {
		t.Fatal("there are none")
	}
	notified := func(what string) {
		t.Helper()
		if q := <-queues; q != "e" {
			t.Errorf("%s: the notification is of %q, want e", what, q)
		}
	}
	k.sql("NOTIFY jobs")
	notified("its own producer's")
	k.write(backends.Enqueue{Jobs: []backends.NewJob{{Queue: "e", Payload: []byte("1")}}}, 0)
	notified("enqueue")
	k.write(backends.Nack{Leases: leases(k.one("e")), HasDelay: true}, 0)
	notified("nack")
	k.write(backends.Release{Leases: leases(k.one("e")), Uncounted: true}, 0)
	notified("release")
	k.write(backends.Ack{Leases: leases(k.one("e")), Enqueue: []backends.NewJob{{Queue: "e", Payload: []byte("2")}}}, 0)
	notified("what follows an ack")
	k.write(backends.Nack{Leases: leases(k.one("e")), Dead: true}, 0)
	for kind, c := range map[string]backends.Command{
		"retry":   {Kind: backends.Retry, All: true},
		"release": {Kind: backends.Reclaim, IDs: []string{k.one("e").ID}},
	} {
		c.Queue = "e"
		if n, freed, err := k.Command(t.Context(), c); n != 1 || !freed || err != nil {
			t.Fatalf("%s: %d, %v, %v", kind, n, freed, err)
		}
		notified("the command " + kind)
	}
	k.one("e")
	k.sql("UPDATE qsidecar.qsidecar_leases SET due_at = 1 WHERE token_sidecar IS NOT NULL")
	k.maintain(backends.Maintenance{})
	notified("lease ended")
	k.sql("UPDATE my_queue SET state = 'processing', started = now() - interval '2 hours'")
	k.maintain(backends.Maintenance{})
	notified("stuck")
}
