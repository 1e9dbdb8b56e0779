package sqlite

import (
	"context"
	"time"
)

// numberAge is how long the commit number of a Store that commits no more is kept.
const numberAge = 7 * 24 * time.Hour

// Tidy implements core.Tidier. It deletes old commit numbers.
func (a access) Tidy(ctx context.Context, _ int) error {
	var old bool
	if err := a.reading(ctx, func(t *tx) (err error) {
		old, err = t.exists(t.sql.oldMarked, t.now-numberAge.Milliseconds())
		return err
	}); err != nil || !old {
		return err
	}
	return a.write(ctx, &a.writer, a.openWriter, func(t *tx) error {
		_, err := t.exec(t.sql.oldMarks, t.now-numberAge.Milliseconds())
		return err
	})
}
