package advise

import (
	"context"
	"fmt"

	"github.com/qsidecar/qsidecar/backends/adopted/internal/statement"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// large warns about rows that this sidecar passes over.
func (t *trying) large(ctx context.Context, limit int64) error {
	var items []string
	if err := t.engine.Query(ctx, t.q.LargeItems(limit, waitingRows, func(item string) { items = append(items, item) })); err != nil || len(items) == 0 {
		return err
	}
	count := fmt.Sprint(len(items))
	if len(items) == waitingRows {
		count += " or more"
	}
	t.found.AddWarning("table", fmt.Sprintf("queues.%s.table: %s rows of %s that wait have a payload of more than %d bytes, for example %s. Sidecars pass them over, and its own consumers can work them",
		t.q.Queue, count, t.q.SQLName, limit, items[0]), "raise max_frame if workers of this sidecar are to get them")
	return nil
}

// waiting warns about what a sample of waiting rows shows.
func (t *trying) waiting(s statement.WaitingSample) {
	for _, role := range t.q.ClaimRoles() {
		if n := s.Set[role]; n > 0 {
			c, _ := t.q.Column(role)
			key := "columns." + string(role)
			if role == mapping.TokenRole {
				key = "token.column"
			}
			t.found.AddWarning("table", fmt.Sprintf("queues.%s.%s: %d of %d sampled rows that wait have a value in %s, and a claim overwrites it. If the job is given back, the old value comes back, "+
				"but while a worker has the job, and when it is done, the row has the sidecar's", t.q.Queue, key, n, s.Rows, c.Name),
				fmt.Sprintf("remove it if the application's own code needs %s", c.Name))
		}
	}
	if c, has := t.q.Column(mapping.Attempts); has && s.Dead > 0 && 2*s.Dead >= s.Rows {
		t.found.AddWarning("table", fmt.Sprintf("queues.%s.columns.attempts: %d of %d sampled rows that wait have used all attempts by %s, so sidecars take them for dead and claim none of them",
			t.q.Queue, s.Dead, s.Rows, c.Name), "remove the role if the column counts the attempts that remain, or raise max_attempts")
	}
}

// claimsElsewhere warns about another table that seems to have the claims.
func (t *trying) claimsElsewhere() {
	for _, table := range mapping.ClaimTables(t.q.Info) {
		t.found.AddWarning("table", fmt.Sprintf("queues.%s.table: the table %s refers to its rows, and seems to show which of them are claimed. Sidecars neither read nor write it",
			t.q.Queue, table), "make sure that its own consumers see the sidecars' claims in "+t.q.SQLName+" itself; otherwise both run the same jobs")
	}
}
