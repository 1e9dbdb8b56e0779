package sqlite

// repairSequence sets the sequence to the last number that anything names, so that no id repeats.
func (t *tx) repairSequence() error {
	err := t.query(t.sql.lastNumber, func(r row) error {
		t.seq = r.int(0)
		return nil
	})
	if err == nil {
		_, err = t.exec(t.sql.restoreSequence)
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
