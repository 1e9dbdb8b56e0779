package sqlserver

import (
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
)

// TestManyParameters shows that statements with more parameters than the limit of a batch go in several batches.
func TestManyParameters(t *testing.T) {
	t.Parallel()
	batches := 0
	s, _ := scriptedStore(t, func(query string) ([]*answer, error) {
		batches++
		var sets []*answer
		for range strings.Count(query, "SELECT 1 AS one") {
			sets = append(sets, rowOf("x"))
		}
		return sets, nil
	})
	d := s.Dialect()
	id := backends.Column{Name: "id", Type: "bigint", Kind: backends.NumberColumn}
	ids := make([]string, 64) // the longest list whose values are parameters of their own
	for i := range ids {
		ids[i] = "7"
	}
	rows := 0
	var all []*backends.Statement
	for range 40 { // 2,560 parameters
		all = append(all, &backends.Statement{Text: "SELECT 1 AS one WHERE " + d.AnyOf(1, id), Args: []any{ids}, Row: func(cells [][]byte) error {
			if rows++; string(cells[0]) != "x" {
				t.Errorf("%q", cells)
			}
			return nil
		}})
	}
	if err := s.Query(t.Context(), all...); err != nil || batches != 2 || rows != 40 || all[39].Matched != 1 {
		t.Errorf("%v, %d batches, %d rows", err, batches, rows)
	}
}
