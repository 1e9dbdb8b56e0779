package sqlite

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlite/internal/dialect"
)

var _ backends.Adopter = (*Store)(nil)

// Dialect implements backends.Adopter.
func (s *Store) Dialect() backends.Dialect { return dialect.New() }

// Query implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.reading(ctx, func(t *tx) error { return t.Do(ctx, statements...) })
}

// Do implements backends.SQL.
func (t *tx) Do(_ context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		if err := t.run(st); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) run(st *backends.Statement) (err error) {
	args := slices.Clone(st.Args)
	for i, a := range args {
		if list, ok := a.([]string); ok {
			text, err := json.Marshal(list)
			if err != nil {
				return err
			}
			args[i] = string(text)
		}
	}
	st.Matched = 0
	if st.Row == nil && !strings.HasPrefix(st.Text, "SELECT") {
		st.Matched, err = t.exec(st.Text, args...)
		return err
	}
	return t.query(st.Text, func(r row) error {
		st.Matched++
		if st.Row == nil {
			return nil
		}
		cells := make([][]byte, len(r))
		for i, v := range r {
			if n, ok := v.(int64); ok {
				cells[i] = strconv.AppendInt(nil, n, 10)
			} else {
				cells[i] = r.bytes(i)
			}
		}
		return st.Row(cells)
	}, args...)
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return core.QueuesOfJobs(ctx, s, "INTEGER", leases)
}
