package adopted

import (
	"context"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/advise"
	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
)

// Advice is what could be better about the adopted tables, as far as the catalogue shows it.
func (s *Store) Advice() backends.Findings { return advise.Startup(s.sortedQueues(), s.Engine) }

// Examine implements backends.Examiner: the engine's findings, and those about each adopted table.
func (s *Store) Examine(ctx context.Context, queues []backends.Policy) ([]backends.Finding, error) {
	found, err := s.Engine.Examine(ctx, slices.DeleteFunc(slices.Clone(queues), func(p backends.Policy) bool { return s.Adopted(p.Queue) }))
	if err != nil {
		return found, err
	}
	mine, err := advise.Examine(ctx, s.Engine, s.sortedQueues())
	if found = append(found, mine...); err != nil {
		return found, err
	}
	tried, err := s.Try(ctx)
	return append(found, tried...), err
}

// Try is what the rows and constraints of the adopted tables are in the way of. It changes nothing.
func (s *Store) Try(ctx context.Context) (backends.Findings, error) {
	return advise.Try(ctx, s.Engine, s.sortedQueues(), s.MaxPayload)
}

// sortedQueues are the queues by name whose tables fit.
func (s *Store) sortedQueues() (all []*statement.Queue) {
	queues := s.queues()
	for _, name := range slices.Sorted(maps.Keys(queues)) {
		all = append(all, queues[name])
	}
	return all
}
