package batch

import (
	"cmp"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
)

// Leases are arrays of leases, and which write each is of.
type Leases struct {
	Of               []int // the write's number in the batch
	Lease            []backends.Lease
	ID, Host, Number []int64
	Owner            []int64
}

// Add appends a lease. One whose job is no job's id is looked for under 0, which
// no row has.
func (l *Leases) Add(write int, lease backends.Lease, owner backends.Identity) {
	id, ok := Number(lease.Job)
	if !ok {
		id = 0
	}
	l.Of, l.Lease = append(l.Of, write), append(l.Lease, lease)
	l.ID, l.Host = append(l.ID, id), append(l.Host, int64(lease.Token.Host))
	l.Number, l.Owner = append(l.Number, int64(lease.Token.Number)), append(l.Owner, int64(owner))
}

// Sort brings the arrays of leases into the order of their ids, as the statements
// want them, and returns where each came from.
func (l *Leases) Sort() (order []int) {
	order = make([]int, len(l.ID))
	for i := range order {
		order[i] = i
	}
	if slices.IsSorted(l.ID) {
		return order
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(l.ID[a], l.ID[b]) })
	l.ID, l.Host, l.Number, l.Owner = Sorted(l.ID, order), Sorted(l.Host, order), Sorted(l.Number, order), Sorted(l.Owner, order)
	l.Of, l.Lease = Sorted(l.Of, order), Sorted(l.Lease, order)
	return order
}

// Sorted is x in the order that Sort returned.
func Sorted[T any](x []T, order []int) []T {
	y := make([]T, len(x))
	for i, from := range order {
		y[i] = x[from]
	}
	return y
}
