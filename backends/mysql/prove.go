package mysql

import (
	"context"
	"time"

	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

const (
	proveFor   = time.Second
	proveEvery = 50 * time.Millisecond
)

// prove checks in the background whether ready jobs remain behind a queue's heads, if such a check is due.
func (s *Store) prove(queue string) {
	s.proof.Lock()
	defer s.proof.Unlock()
	if s.proving || s.Life().Err() != nil || time.Since(s.proved) < proveEvery {
		return
	}
	p, ok := s.Cursors.ToProve(queue)
	if !ok {
		return
	}
	s.proving = true
	s.aside.Go(func() {
		ctx, cancel := context.WithTimeout(s.Life(), proveFor)
		defer cancel()
		if err := s.proveNow(ctx, p); err != nil {
			s.log.Debug("a queue's heads are not proven yet", "place", s.place, "queue", queue, "error", err)
		}
		s.proof.Lock()
		defer s.proof.Unlock()
		s.proving, s.proved = false, time.Now()
	})
}

// proveNow reads the entries of the index with locks, so it sees committed and uncommitted rows. If
// another transaction has locked, inserted or changed a row of the piece, and can still roll back, the
// server returns an error instead of waiting. Then nothing is proven.
func (s *Store) proveNow(ctx context.Context, p cursor.Proof) error {
	c, l, err := s.take(ctx, &s.pool)
	if err != nil {
		return err
	}
	defer func() { s.pool.put(c, l) }()
	ended, first := int64(0), make([]int64, len(p.Urgency))
	var t script
	t.each(func(r *result) error {
		ended = r.int(0)
		return nil
	}, "SELECT "+position)
	for i := range p.Urgency {
		where := within([]cursor.Segment{{
			From: cursor.Spot{Urgency: p.Urgency[i], Position: p.Low[i]}, To: cursor.Spot{Urgency: p.Urgency[i], Position: p.High[i]},
		}})
		t.each(func(r *result) error {
			first[i] = r.int(0)
			return nil
		}, "SELECT place FROM "+jobs+" WHERE "+laneRange+" AND "+where+" ORDER BY "+inLanes+" LIMIT 1 FOR UPDATE NOWAIT", "r"+p.Queue, "r"+p.Queue)
	}
	if err := c.query(ctx, t.sql.String(), t.args, t.reads); err != nil {
		return err
	}
	s.Cursors.Advance(p, ended, first)
	return nil
}
