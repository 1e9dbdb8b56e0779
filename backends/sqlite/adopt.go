package sqlite

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

var _ backends.Adopter = (*Store)(nil)

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.Batch, also backends.TxHooks) (backends.Results, error) {
	var res backends.Results
	err := s.write(ctx, &s.writer, s.openWriter, func(t *tx) error {
		b := b
		b.Writes = slices.Clone(b.Writes) // Before may add some
		if also.Before != nil {
			if err := also.Before(ctx, t, &b); err != nil {
				return err
			}
		}
		if err := t.commit(b, also.Claims, &res); err != nil {
			return err
		}
		if also.After == nil {
			return nil
		}
		return also.After(ctx, t, &res)
	})
	if err != nil {
		return backends.Results{}, err // res may still be written to
	}
	return res, nil
}

// Ask implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.reading(ctx, func(t *tx) error { return t.Do(ctx, statements...) })
}

// Do implements backends.SQL.
func (t *tx) Do(_ context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		if err := t.say(st); err != nil {
			return err
		}
	}
	return nil
}

func (t *tx) say(st *backends.Statement) (err error) {
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
	return batch.QueuesOfJobs(ctx, s, "INTEGER", leases)
}
