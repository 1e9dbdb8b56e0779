package adopted_test

import (
	"errors"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted"
	"github.com/qsidecar/qsidecar/backends/adopted/adoptedtest"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

// movableClock makes qsidecar_now return what the table clock has.
const movableClock = `CREATE TABLE clock (now timestamptz); INSERT INTO clock VALUES (now());
	CREATE OR REPLACE FUNCTION qsidecar.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now FROM public.clock'`

// TestCoarseTimes checks that nothing happens early if a column holds no fractions of a second, or few digits of them.
func TestCoarseTimes(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"timestamp(0)", "timestamptz(0)", "timestamp(1)", "timestamptz(2)"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			url := server.Database(t) // of its own, because its clock stays changed
			k := &kit{T: t, url: url, c: connect(t, url)}
			k.sql("CREATE TABLE a (id bigserial PRIMARY KEY, state varchar(9) NOT NULL DEFAULT 'new', run_at " + kind + ", since " + kind + ")")
			engine, err := postgres.Open(t.Context(), postgres.Options{URL: url})
			if err != nil {
				t.Fatal(err)
			}
			if k.Store, err = adopted.New(t.Context(), pgdiagnose.New(engine), map[string]mapping.Table{"a": {
				Name: "a", StuckAfter: time.Minute, Columns: map[mapping.Role][]string{mapping.ID: {"id"}, mapping.State: {"state"}, mapping.RunAt: {"run_at"}, mapping.ClaimedAt: {"since"}},
				States: map[backends.State]mapping.Value{backends.StateReady: {Text: "new"}, backends.StateClaimed: {Text: "busy"}, backends.StateDone: {Text: "done"}},
			}}); err != nil {
				t.Fatal(errors.Join(err, engine.Close()))
			}
			closed(t, k.Store)
			k.heartbeat(me, backends.HeartbeatJoin, 1000*time.Hour)
			k.sql(movableClock)
			clock := func(at time.Time) { k.sql("UPDATE clock SET now = '" + at.Format(time.RFC3339Nano) + "'") }
			for i := range 10 {
				now := time.Date(2026, 6, 1, 12, i, 0, 137_000_000*i%1_000_000_000, time.UTC)
				clock(now)
				const delay = 1300 * time.Millisecond
				for _, j := range []backends.NewJob{{Queue: "a", Delay: delay}, {Queue: "a", RunAt: now.Add(delay)}} {
					k.write(backends.Enqueue{Jobs: []backends.NewJob{j}}, 0)
				}
				clock(now.Add(delay - time.Millisecond))
				if n := len(k.claim("a", 9)); n > 0 {
					t.Errorf("%v: %d jobs were claimed early", now, n)
				}
				clock(now.Add(delay + time.Second))
				k.write(backends.Ack{Leases: leases(k.claim("a", 9)...)}, 0)
				k.sql("DELETE FROM a; INSERT INTO a (state, since) SELECT 'busy', now FROM clock")
				clock(now.Add(delay + 61*time.Second - time.Millisecond))
				if r := k.maintain(backends.Maintenance{}); len(r.MadeReady) > 0 && kind != "timestamp(0)" && kind != "timestamptz(0)" { // the owner's own value is rounded
					t.Errorf("%v: a row was taken back early", now)
				}
				clock(now.Add(delay + 64*time.Second))
				k.maintain(backends.Maintenance{})
				if n := len(k.claim("a", 9)); n != 1 {
					t.Errorf("%v: %d rows were taken back", now, n)
				}
				k.sql("DELETE FROM a")
			}
		})
	}
}

// TestLocalTimes checks columns of times without a zone while the clock of their zone changes.
func TestLocalTimes(t *testing.T) {
	t.Parallel()
	for _, change := range adoptedtest.Changes {
		t.Run(change.Zone+change.At.Format(" January"), func(t *testing.T) {
			t.Parallel()
			url := server.Database(t)
			open := func() backends.Engine {
				engine, err := postgres.Open(t.Context(), postgres.Options{URL: url})
				if err != nil {
					t.Fatal(err)
				}
				return pgdiagnose.New(engine)
			}
			k := &kit{T: t, url: url, c: connect(t, url)}
			if err := open().Close(); err != nil { // it creates qsidecar_now
				t.Fatal(err)
			}
			k.sql(movableClock)
			k.sql("DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''" + change.Zone + "''', current_database()); END$$")
			adoptedtest.LocalTimes(t, change, adoptedtest.Server{
				Open: open, SQL: k.sql, Type: "timestamp",
				Clock: func(at time.Time) { k.sql("UPDATE clock SET now = '" + at.Format(time.RFC3339) + "'") },
			})
		})
	}
}
