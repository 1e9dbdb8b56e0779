package core

import (
	"context"

	"github.com/qsidecar/qsidecar/backends"
)

// asker is what Queues needs from an engine.
type asker interface {
	Query(ctx context.Context, statements ...*backends.Statement) error
	Dialect() backends.Dialect
}

// Queues returns the queues of rows in one of the sidecar's own tables. number is the type of the table's id,
// as the engine writes it in a CAST.
func Queues(ctx context.Context, a asker, table, number string, ids []string) (queues []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	g := a.Dialect()
	err = a.Query(ctx, &backends.Statement{
		Text: "SELECT DISTINCT " + g.ToText(g.Name("queue")) + " AS queue FROM " + g.SidecarTable(table) +
			" WHERE " + g.AnyOf(1, backends.Column{Name: "id", Type: number, Kind: backends.NumberColumn}),
		Args: []any{ids},
		Row: func(cells [][]byte) error {
			queues = append(queues, string(cells[0]))
			return nil
		},
	})
	return queues, err
}

// QueuesOfJobs implements backends.Locator's Queues for managed jobs.
func QueuesOfJobs(ctx context.Context, a asker, number string, leases []backends.Lease) ([]string, error) {
	var ids []string
	for _, l := range leases {
		if _, ok := Number(l.Job); ok {
			ids = append(ids, l.Job)
		}
	}
	return Queues(ctx, a, "qsidecar_jobs", number, ids)
}
