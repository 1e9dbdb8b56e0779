package sqlite

// newSequence is the last number that anything names. It reads whole tables, and is needed only after something emptied
// sqlite_sequence or set it back.
const newSequence = `SELECT max(n) FROM (SELECT 0 AS n UNION ALL SELECT max(max(id, coalesce(position, 0))) FROM qsidecar_jobs
	UNION ALL SELECT max(job) FROM qsidecar_keys UNION ALL SELECT max(job) FROM qsidecar_failures)`

// repairSequence sets the sequence to the last number that anything names, so that no id repeats.
func (t *tx) repairSequence() error {
	err := t.query(newSequence, func(r row) error {
		t.seq = r.int(0)
		return nil
	})
	if err == nil {
		_, err = t.exec("INSERT INTO sqlite_sequence (name, seq) SELECT 'qsidecar_jobs', 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'qsidecar_jobs')")
	}
	t.repaired = err == nil
	return err
}

// next returns the next number of the sequence that ids and positions share.
func (t *tx) next() (int64, error) {
	if t.seq < 0 {
		behind := true
		if err := t.query(t.sql.sequence, func(r row) error {
			t.seq, behind = r.int(0), r.int(0) < r.int(1)
			return nil
		}); err != nil {
			return 0, err
		}
		if behind {
			if err := t.repairSequence(); err != nil {
				return 0, err
			}
		}
	}
	t.seq++
	t.moved = true
	return t.seq, nil
}
