package sqlserver

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
)

// Examine implements backends.Examiner.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	return nil, nil
}
