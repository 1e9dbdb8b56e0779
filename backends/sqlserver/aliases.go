package sqlserver

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/sqlserver/internal/dialect"
)

// Short names for functions of the core, for the checks and the migrations.

func (s *Store) bound(ctx context.Context) (context.Context, func()) { return s.Bound(ctx) }

func (s *Store) outcome(ctx context.Context, err error) error { return s.Outcome(ctx, err) }

// again runs f until it succeeds, or until a retry can't help.
func (s *Store) again(ctx context.Context, f func() error) error {
	return s.Again(ctx, func(context.Context) error { return f() })
}

// read carries out one batch outside of any transaction, and retries it if that can help.
func (s *Store) read(ctx context.Context, calls ...call) error {
	return s.Again(ctx, func(ctx context.Context) error { return s.once(ctx, calls...) })
}

const maxTries = core.MaxTries

func narrow(c backends.Column) bool { return dialect.Narrow(c) }
