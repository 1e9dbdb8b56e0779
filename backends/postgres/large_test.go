package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestLargePayloadsNeedNoFile: the payloads of a whole commit stay in the server's memory. Afterwards a sort needs a temporary
// file, so that the count of such files is certain to be recent.
func TestLargePayloadsNeedNoFile(t *testing.T) {
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s, err := Open(t.Context(), Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		var b backends.CommitContent
		for range 16 {
			b.Writes = append(b.Writes, backends.Enqueue{Jobs: []backends.NewJob{{Queue: "q", Payload: make([]byte, 1<<20)}}})
		}
		_, err = s.Commit(t.Context(), b)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		c, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		ask := func(sql string) (n int) {
			if err := c.QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatalf("%s: %v", sql, err)
			}
			return n
		}
		testwait.Until(t, "the store's sessions have ended", func() bool {
			return ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'") == 1
		})
		must(t, url, "SET work_mem = '64kB'; SELECT generate_series(1, 100000) ORDER BY 1 DESC")
		n := 0
		testwait.Until(t, "the sort's file is counted", func() bool {
			n = ask("SELECT temp_files FROM pg_stat_database WHERE datname = current_database()")
			return n > 0
		})
		if n > 1 {
			t.Errorf("%d temporary files were needed, want 1", n)
		}
	})
}
