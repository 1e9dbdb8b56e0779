package mysql

import (
	"context"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// InnoDB keeps AUTO_INCREMENT above the ids of its own table. TRUNCATE sets it back, and so can a restore of the tables in parts. Then new
// jobs get ids that keys and failures still name. So each Store looks for that when it is opened, and its cleaner does on its way.

const (
	// sampledKeys is how many keys Open reads. The cleaner reads all of them over time.
	sampledKeys = 10_000
	idMargin    = 10_000
)

// checkIDs repairs AUTO_INCREMENT if a key or a failure names a later id.
func (s *Store) checkIDs(ctx context.Context) error {
	highest := int64(0)
	err := s.read(ctx, func(_ context.Context, t *tx) error {
		t.Int(&highest, s.sql.highestNamed, sampledKeys)
		return nil
	})
	if err != nil {
		return err
	}
	return s.idsBeyond(ctx, highest)
}

// idsBeyond ensures that new ids are higher than one that something names.
func (s *Store) idsBeyond(ctx context.Context, highest int64) error {
	next, last := int64(0), int64(0)
	err := s.read(ctx, func(_ context.Context, t *tx) error {
		t.Int(&last, s.sql.highestID)
		if !s.dialer.Server.Maria { // it keeps this number for a day otherwise
			t.Add("SET SESSION information_schema_stats_expiry = 0")
		}
		t.Int(&next, s.sql.nextID)
		return nil
	})
	if err != nil || highest < max(next, last+1) {
		return err
	}
	// A row with a higher id, which no other transaction sees, moves AUTO_INCREMENT on replicas and other nodes too. ALTER TABLE needs a
	// right that the account rarely has.
	id := highest + idMargin
	err = s.Write(ctx, core.TxOptions{}, func(_ context.Context, x core.Tx) error {
		t := x.(*tx)
		t.wrote = true
		t.Add(s.sql.storeID, id)
		t.Add(s.sql.deleteID, id)
		return nil
	})
	if session.IsCode(err, 1062) {
		return nil // another sidecar was faster, and jobs have got there
	}
	if err == nil {
		s.log.Warn("sequence repaired", "event", "sequence_repaired", "address", s.place, "number", id)
	}
	return err
}
