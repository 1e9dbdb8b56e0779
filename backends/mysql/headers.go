package mysql

import (
	"context"
	"strings"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/mysql/internal/session"
)

// repairHeaders replaces headers that prevent changes of a row on MariaDB, and reports whether it found any. A
// session that is not strict, with check_constraint_checks = 0, can store JSON that JSON_TYPE can't read (nested too
// deep, half a surrogate pair). After that, each UPDATE of the row returns an error, so claims and maintenance that
// meet the row fail as a whole. It replaces them by an object with one member: the empty name, with the old text as
// its value.
func (s *Store) repairHeaders(ctx context.Context, err error) bool {
	if !s.dialer.Server.Maria || !session.IsCode(err, codeJSONSyntax, codeJSONDepth) || !strings.Contains(err.Error(), "json_type") {
		return false
	}
	var ids []int64
	failed := access{s}.Transact(ctx, core.TxOptions{}, func(ctx context.Context, x core.Tx) error {
		t := x.(*tx)
		t.Ints(&ids, s.sql.unreadableHeaders)
		if err := t.Flush(ctx); err != nil || len(ids) == 0 {
			return err
		}
		t.wrote = true
		t.Add(s.sql.replaceHeaders, session.IDs(ids))
		return nil
	})
	if failed == nil && len(ids) > 0 {
		s.log.Warn("unreadable headers replaced", "event", "headers_replaced", "address", s.place, "jobs", len(ids), "first", ids[0], "error", err)
	}
	return failed == nil && len(ids) > 0
}
