package core

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/progress"
)

// progress returns the table of progress, or an error if the engine has none.
func (s *Store) progress() (*progress.Table, error) {
	s.progressOnce.Do(func() {
		if engine, ok := s.driver.(backends.Adopter); ok && s.traits.Progress {
			s.progressTable = &progress.Table{Engine: engine, Dialect: engine.Dialect()}
		}
	})
	if s.progressTable == nil {
		return nil, backends.ErrNoProgress
	}
	return s.progressTable, nil
}

// SaveProgress implements backends.ProgressKeeper.
func (s *Store) SaveProgress(ctx context.Context, all []backends.LeaseProgress) ([]backends.ProgressOutcome, error) {
	t, err := s.progress()
	if err != nil {
		return nil, err
	}
	items := make([]progress.Item, len(all))
	for i := range all {
		id, _ := Number(all[i].Lease.Job) // 0: no row has it
		items[i] = progress.Item{Job: id, Token: all[i].Lease.Token, Progress: all[i].Progress}
	}
	return t.Save(ctx, items)
}

// ProgressOf implements backends.ProgressKeeper.
func (s *Store) ProgressOf(ctx context.Context, ids []string) (map[string]backends.Progress, error) {
	t, err := s.progress()
	if err != nil {
		return nil, err
	}
	found, err := t.Of(ctx, idsOf(ids))
	if err != nil {
		return nil, err
	}
	all := make(map[string]backends.Progress, len(found))
	for id, p := range found {
		all[ID(id)] = p
	}
	return all, nil
}

// ForgetProgress implements backends.ProgressKeeper.
func (s *Store) ForgetProgress(ctx context.Context, ids []string) error {
	t, err := s.progress()
	if err != nil {
		return err
	}
	return t.Forget(ctx, idsOf(ids))
}

// ProgressJobs implements backends.ProgressKeeper.
func (s *Store) ProgressJobs(ctx context.Context, after string, limit int) ([]string, error) {
	t, err := s.progress()
	if err != nil {
		return nil, err
	}
	from, _ := Number(after) // 0: from the start
	found, err := t.Jobs(ctx, from, limit)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(found))
	for i, id := range found {
		ids[i] = ID(id)
	}
	return ids, nil
}
