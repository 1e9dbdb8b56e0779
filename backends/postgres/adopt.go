package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batch"
)

var _ backends.Adopter = (*Store)(nil)

// lockPatience is how long a commit waits for what another program has locked. Writes
// whose own rows are locked wait so long alone; see backends.Batch.Wait.
const lockPatience = "SELECT pg_catalog.set_config('lock_timeout', '500', true)"

// CommitWith implements backends.Adopter.
func (s *Store) CommitWith(ctx context.Context, b backends.Batch, also backends.TxHooks) (backends.Results, error) {
	k, sc := s.with(b, also)
	if err := s.write(ctx, sc, k.rounds(also)); err != nil {
		return backends.Results{}, lockedOut(err)
	}
	k.learn(sc.queues)
	s.tell.freed(k.res.Writes)
	if also.Freed != nil {
		s.tell.freed([]backends.WriteResult{{MadeReady: also.Freed()}})
	}
	return k.res, nil
}

// with is a batch on its way, with more in its transaction.
func (s *Store) with(b backends.Batch, also backends.TxHooks) (*commitment, scope) {
	k := &commitment{s: s}
	sc := scope{unsynced: len(b.Writes) == 0 && !also.Writes}
	if len(b.Claims) > 0 || also.Claims {
		host := int64(b.Host)
		sc.host, sc.queues = &host, batch.QueuesOf(b.Claims)
	}
	sc.before = func(ctx context.Context, t *tx) error {
		k.batch, k.res = b, backends.Results{}
		k.batch.Writes = append([]backends.Write(nil), b.Writes...) // Before may add some, at each try
		if also.Writes {
			t.add(lockPatience, nil)
		}
		if also.Before == nil {
			return nil
		}
		return also.Before(ctx, t, &k.batch)
	}
	if also.After != nil {
		sc.after = func(ctx context.Context, t *tx) error { return also.After(ctx, t, &k.res) }
	}
	return k, sc
}

// rounds is the batch's part of the transaction.
func (k *commitment) rounds(also backends.TxHooks) work {
	return func(t *tx, round int) (bool, error) {
		if len(k.batch.Writes)+len(k.batch.Claims) == 0 {
			return also.After == nil && round == 0, nil // once, to learn who the transaction is
		}
		return k.round(t, round)
	}
}

// lockedOut gives the error of a transaction that waited for somebody's row its kind.
func lockedOut(err error) error {
	if said := (*pgconn.PgError)(nil); errors.As(err, &said) && said.Code == "55P03" {
		return &backends.LockedError{Err: errors.New(words(said))}
	}
	return err
}

// Do implements backends.SQL.
func (t *tx) Do(ctx context.Context, statements ...*backends.Statement) error {
	for _, st := range statements {
		t.say(st)
	}
	return t.send(ctx)
}

func (t *tx) say(st *backends.Statement) {
	t.add(st.Text, func(rows pgx.Rows) error {
		for rows.Next() {
			if st.Row == nil {
				continue
			}
			if err := st.Row(rows.RawValues()); err != nil {
				return err
			}
		}
		rows.Close()
		st.Matched = rows.CommandTag().RowsAffected()
		return nil
	}, st.Args...)
}

// Ask implements backends.Adopter.
func (s *Store) Query(ctx context.Context, statements ...*backends.Statement) error {
	return s.read(ctx, func(_ context.Context, t *tx) error {
		for _, st := range statements {
			t.say(st)
		}
		return nil
	})
}

// Queues implements backends.Locator.
func (s *Store) Queues(ctx context.Context, leases []backends.Lease) ([]string, error) {
	return batch.QueuesOfJobs(ctx, s, "bigint", leases)
}
