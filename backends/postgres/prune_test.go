package postgres

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/internal/testserver"
)

// TestPruneUnderASnapshot: while another connection keeps a snapshot open, pruned entries stay
// in the index. Each batch begins after them. Otherwise, pruning n rows in batches of b would
// read n²/2b entries.
func TestPruneUnderASnapshot(t *testing.T) {
	const rows, bite = 10_000, 250
	everywhere(t, func(t *testing.T, p *testserver.Postgres) {
		url := filled(t, p)
		s := open(t, Options{URL: url})
		must(t, url, `INSERT INTO qsidecar.qsidecar_jobs (queue, state, finished_at, prune_at)
			SELECT 'q', 'done', now() - interval '1 day', now() - n * interval '1 s' FROM generate_series(1, 10000) n`)
		must(t, url, `ANALYZE qsidecar.qsidecar_jobs`)
		look, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := look.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		held, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := held.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		if _, err := held.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM qsidecar.qsidecar_jobs LIMIT 1`, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
		pruned := 0
		for more := true; more; {
			r, err := s.Maintain(t.Context(), backends.Maintenance{Limit: 10, Prune: true, PruneBatch: bite})
			if err != nil {
				t.Fatal(err)
			}
			pruned, more = pruned+r.Pruned, r.PruneMore
		}
		if pruned != rows {
			t.Errorf("%d pruned, want %d", pruned, rows)
		}
		if err := s.Close(); err != nil { // its sessions report their statistics when they end
			t.Fatal(err)
		}
		read := int64(-1)
		for read < rows {
			if err := look.QueryRow(t.Context(), `SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = 'qsidecar_prunable'`).Scan(&read); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%d rows pruned under a snapshot: %d entries of the index were read", pruned, read)
		if read > 5*rows {
			t.Errorf("%d entries were read for %d rows", read, rows)
		}
	})
}
