package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/internal/batches"
)

// Batches of jobs. Package batches describes them, and has their statements. Here is what a commit does for members. A commit
// without members does nothing of it, and no statement of a claim or an ack has more to do.

// batches returns the batches of the database. They need the Dialect of the engine, whose Store its Driver embeds.
func (s *Store) batches() (*batches.Table, error) {
	s.batchesOnce.Do(func() {
		if engine, ok := s.driver.(backends.Adopter); ok {
			s.batchTable = &batches.Table{Engine: engine, Dialect: engine.Dialect(), Clock: s.clock, Groups: keepsGroups}
		}
	})
	if s.batchTable == nil {
		return nil, &backends.UnsupportedError{What: "batch", NoBatches: true}
	}
	return s.batchTable, nil
}

func keepsGroups(sql backends.SQL) bool { _, ok := sql.(Grouper); return ok }

// clock returns the time of the database's clock.
func (s *Store) clock(ctx context.Context) (at time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, r Reader) (err error) {
		c, ok := r.(interface {
			Clock(ctx context.Context) (time.Time, error)
		})
		if !ok {
			return fmt.Errorf("%T has no clock", r)
		}
		at, err = c.Clock(ctx)
		return err
	})
	return at, err
}

// hasBatches reports whether a write stores members of batches.
func hasBatches(w backends.Write) bool {
	return slices.ContainsFunc(JobsOf(w), func(j backends.NewJob) bool { return j.Batch != "" })
}

// enterBatches writes the rows of the batches of new jobs. The writes to batches that can't get members get an error.
func (c *Commit) enterBatches(ctx context.Context, tx Tx) error {
	var ids []string
	queue := ""
	for _, w := range c.batch.Writes {
		for _, j := range JobsOf(w) {
			if j.Batch != "" && !slices.Contains(ids, j.Batch) {
				ids, queue = append(ids, j.Batch), j.Queue
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	t, err := c.s.batches()
	if err != nil {
		return &backends.UnsupportedError{Queue: queue, What: "batch", NoBatches: true}
	}
	refused, err := t.Enter(ctx, tx, ids)
	if err != nil || len(refused) == 0 {
		return err
	}
	for i, w := range c.batch.Writes {
		for _, j := range JobsOf(w) {
			if e := refused[j.Batch]; e != nil && c.res.Writes[i].Err == nil {
				c.res.Writes[i].Err = e
			}
		}
	}
	return nil
}

// changeBatches adds the new members, and marks those that ended.
func (c *Commit) changeBatches(ctx context.Context, tx Tx) error {
	if slices.ContainsFunc(c.jobs, func(j *NewJob) bool { return j.Batch != "" }) {
		unknown := func(j *NewJob) bool { return j.Batch != "" && j.answer.ID == "" && !j.passed }
		for range 2 { // an engine can queue the INSERT at the first Flush
			if slices.ContainsFunc(c.jobs, unknown) {
				if err := c.flush(ctx, tx); err != nil {
					return err
				}
			}
		}
		var added []batches.Member
		for _, j := range c.jobs {
			job, stored := Number(j.answer.ID)
			if j.Batch == "" || !stored || j.answer.Duplicate {
				continue
			}
			batch, _ := batches.Number(j.Batch)
			added = append(added, batches.Member{Batch: batch, Job: job})
		}
		if len(added) > 0 {
			t, err := c.s.batches()
			if err == nil {
				err = t.Add(ctx, tx, added)
			}
			if err != nil {
				return err
			}
		}
	}
	var members []*Row
	for _, r := range c.rows {
		if r.Batch != 0 {
			members = append(members, r)
		}
	}
	c.batches = batchesOf(members)
	return c.s.noteBatches(ctx, tx, members)
}

// batchesOf returns the batches of which members among the rows ended.
func batchesOf(rows []*Row) (ids []int64) {
	for _, r := range rows {
		if r.Batch != 0 && r.Change.ends() {
			ids = append(ids, r.Batch)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ends reports whether the job is done or dead after the change.
func (c *Change) ends() bool {
	return c.Kind == Deleted || c.Kind == Ended && (c.State == backends.StateDone || c.State == backends.StateDead)
}

// noteBatches marks the members among changed rows that are done, and notes the batches of all members that ended.
func (s *Store) noteBatches(ctx context.Context, tx Tx, rows []*Row) error {
	ended := batchesOf(rows)
	if len(ended) == 0 {
		return nil
	}
	var done []batches.Member
	for _, r := range rows {
		if r.Batch != 0 && r.Change.ends() && r.Change.State == backends.StateDone {
			done = append(done, batches.Member{Batch: r.Batch, Job: r.ID})
		}
	}
	t, err := s.batches()
	if err != nil {
		return err
	}
	return t.End(ctx, tx, done, ended)
}

// OpenBatch implements backends.Batcher.
func (s *Store) OpenBatch(ctx context.Context, b backends.NewBatch) (id string, existing bool, err error) {
	t, err := s.batches()
	if err != nil {
		return "", false, err
	}
	return t.OpenBatch(ctx, b)
}

// CloseBatch implements backends.Batcher.
func (s *Store) CloseBatch(ctx context.Context, queue, id string) error {
	t, err := s.batches()
	if err != nil {
		return err
	}
	return t.CloseBatch(ctx, queue, id)
}

// CancelBatch implements backends.Batcher.
func (s *Store) CancelBatch(ctx context.Context, c backends.BatchCancel) (backends.CancelledBatch, error) {
	t, err := s.batches()
	if err != nil {
		return backends.CancelledBatch{}, err
	}
	return t.CancelBatch(ctx, c)
}

// Batches implements backends.Batcher.
func (s *Store) Batches(ctx context.Context, l backends.BatchList) ([]backends.Batch, error) {
	t, err := s.batches()
	if err != nil {
		return nil, err
	}
	return t.Batches(ctx, l)
}

// ResolveBatches implements backends.Batcher.
func (s *Store) ResolveBatches(ctx context.Context, ids []string) (backends.ResolvedBatches, error) {
	t, err := s.batches()
	if err != nil {
		return backends.ResolvedBatches{}, err
	}
	return t.ResolveBatches(ctx, ids)
}
