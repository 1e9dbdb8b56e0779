package memory

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// group names a group of jobs.
type group struct{ queue, name string }

// touch notes that jobs of j's group possibly can be admitted, or have to be blocked again.
func (b *Backend) touch(j *job) {
	if j.Group != "" {
		b.touched[group{j.Queue, j.Group}] = true
	}
}

// touchAll is touch for all groups of a queue.
func (b *Backend) touchAll(queue string) {
	for _, j := range b.jobs {
		if j.Queue == queue {
			b.touch(j)
		}
	}
}

// leaveGroup takes the slot of its group from j, which waits for another one when it becomes ready.
func (b *Backend) leaveGroup(j *job) {
	j.admitted = false
	b.touch(j)
}

// admit gives the slots of the touched groups to their first jobs. Jobs that a worker has, and those in a back-off, keep theirs.
// It returns the queues with new ready jobs.
func (b *Backend) admit() []string {
	b.madeReady = nil
	var up [][]*job // those that get slots, by their ranks in their groups
	for _, g := range slices.SortedFunc(maps.Keys(b.touched), func(x, y group) int { return cmp.Or(cmp.Compare(x.queue, y.queue), cmp.Compare(x.name, y.name)) }) {
		limits, others := b.limits[g.queue], int64(0)
		var members []*job
		for _, j := range b.jobs {
			switch {
			case j.Queue != g.queue || j.Group != g.name:
			case j.state == backends.StateReady || j.state == backends.StateBlocked:
				members = append(members, j)
			case j.admitted:
				others++
			}
		}
		slices.SortFunc(members, func(x, y *job) int {
			return cmp.Or(cmp.Compare(y.Priority, x.Priority), -compareBools(x.admitted, y.admitted), cmp.Compare(x.pos, y.pos))
		})
		place := 0
		for i, j := range members {
			first := int64(i) < limits.GroupPlaces(others)
			switch {
			case j.admitted && !first:
				j.admitted = false
				b.setState(j, backends.StateReady, time.Time{})
			case first && !j.admitted:
				if place == len(up) {
					up = append(up, nil)
				}
				up[place] = append(up[place], j)
				place++
			}
		}
	}
	for _, j := range slices.Concat(up...) {
		if j.admitted = true; b.limits[j.Queue].GroupReady > 0 {
			b.seq++
			j.pos = b.seq
		}
		b.setState(j, backends.StateReady, time.Time{})
	}
	clear(b.touched)
	return b.madeReady
}

// GroupSlots implements backends.Admitter.
func (b *Backend) GroupSlots(ctx context.Context, g backends.Group, limit int) (all []backends.JobState, err error) {
	err = b.do(ctx, func() error {
		for _, j := range b.jobs {
			if j.Queue == g.Queue && j.Group == g.Name && j.admitted && len(all) < limit {
				all = append(all, backends.JobState{ID: j.id, State: j.state})
			}
		}
		return nil
	})
	return all, err
}

func compareBools(x, y bool) int {
	switch {
	case x == y:
		return 0
	case y:
		return -1
	}
	return 1
}
