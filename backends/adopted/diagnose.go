package adopted

import (
	"context"
	"fmt"
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
	hidden, err := s.HiddenJobs(ctx)
	switch found = append(found, hidden...); {
	case err == nil:
	case backends.Retryable(err) || ctx.Err() != nil:
		return found, err
	default: // such as a missing right, which the engine's own findings name
		all := backends.Findings(found)
		all.AddInfo("queue", fmt.Sprintf("can't check whether queues with a table have jobs in qsidecar_jobs too: %v", err))
		found = all
	}
	tried, err := s.Try(ctx)
	return append(found, tried...), err
}

// HiddenJobs finds the queues that have unfinished jobs in qsidecar_jobs: jobs that were enqueued while the queue had no
// adopted table. As long as it has one, no worker gets them, and stats and peek don't show them.
func (s *Store) HiddenJobs(ctx context.Context) (found backends.Findings, err error) {
	if s.Engine.Info().Database == "" { // the sidecar's tables don't exist yet
		return nil, nil
	}
	for _, q := range s.sortedQueues() {
		all, err := s.Engine.Stats(ctx, q.Queue)
		if err != nil {
			return found, err
		}
		for _, st := range all {
			if n := st.Ready + st.Blocked + st.Scheduled + st.Claimed + st.Dead; n > 0 {
				found.AddWarning("queue", fmt.Sprintf("the queue %s has jobs in qsidecar_jobs from a time when it had no table (%d ready, %d blocked, %d scheduled, %d claimed, %d dead): "+
					"while the config maps it to the table %s, no worker gets them, and stats and peek don't show them", q.Queue, st.Ready, st.Blocked, st.Scheduled, st.Claimed, st.Dead, q.SQLName),
					"map the table to a queue of another name; or remove `table` from this queue and reload, let the workers finish these jobs, and add it again")
			}
		}
	}
	return found, nil
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
