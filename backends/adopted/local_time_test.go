package adopted_test

import (
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/adoptedtest"
	"github.com/qsidecar/qsidecar/backends/postgres"
	pgdiagnose "github.com/qsidecar/qsidecar/backends/postgres/diagnose"
)

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
			k.sql("CREATE TABLE clock (now timestamptz); INSERT INTO clock VALUES (now())")
			k.sql(`CREATE OR REPLACE FUNCTION qsidecar.qsidecar_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS 'SELECT now FROM public.clock'`)
			k.sql("DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET TimeZone = ''" + change.Zone + "''', current_database()); END$$")
			adoptedtest.LocalTimes(t, change, adoptedtest.Server{
				Open: open, SQL: k.sql, Type: "timestamp",
				Clock: func(at time.Time) { k.sql("UPDATE clock SET now = '" + at.Format(time.RFC3339) + "'") },
			})
		})
	}
}
