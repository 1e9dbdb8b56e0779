package core

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends"
)

// TestAdmissionDecides draws groups and locked rows, and checks that no decision exceeds the limits, and that no job overtakes another one
// of its group.
func TestAdmissionDecides(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 6)
		a := Admission{Limits: backends.Limits{GroupLimit: int64(n.Draw(t, "limit")), GroupReady: int64(n.Draw(t, "ready"))}, Claimed: n.Draw(t, "claimed"), Full: rapid.Bool().Draw(t, "full")}
		states := map[int64]backends.State{}
		add := func(state backends.State) (all []Member) {
			for range n.Draw(t, string(state)) {
				id := int64(len(states) + 1)
				states[id] = state
				all = append(all, Member{ID: id, Position: int64(n.Draw(t, "position")), Urgency: int32(n.Draw(t, "urgency")), Blocked: state == backends.StateBlocked})
			}
			return all
		}
		a.Delayed = add(backends.StateScheduled)
		a.Members = slices.Concat(add(backends.StateReady), add(backends.StateBlocked))
		a.Sort()
		locked := map[int64]bool{}
		for id := range states {
			locked[id] = rapid.Bool().Draw(t, "locked")
		}
		candidates := a.Candidates()
		leave, block, admit, more := a.Decide(func(id int64, state backends.State) bool { return locked[id] && states[id] == state })

		var up []int64
		for _, m := range admit {
			up = append(up, m.ID)
		}
		for what, part := range map[backends.State][]int64{backends.StateScheduled: leave, backends.StateReady: block, backends.StateBlocked: up} {
			for _, id := range part {
				if states[id] != what || !locked[id] || !slices.Contains(candidates, id) {
					t.Fatalf("job %d, %s, changes as if it were %s (candidates %v)", id, states[id], what, candidates)
				}
			}
		}
		slots := int64(a.Claimed + len(a.Delayed) - len(leave))
		ready := int64(0)
		for _, state := range states {
			if state == backends.StateReady {
				ready++
			}
		}
		ready += int64(len(admit) - len(block))
		if all := slots + ready; len(admit) > 0 && (all > a.Limits.GroupSlots() || a.Limits.GroupReady > 0 && ready > a.Limits.GroupReady) {
			t.Fatalf("%d jobs are admitted, so that %d have slots and %d of these are ready: the limits are %+v", len(admit), all, ready, a.Limits)
		}
		for _, m := range admit { // each blocked job before it is admitted, or its row is locked
			for _, other := range a.Members {
				if other.Blocked && CompareMembers(other, m) < 0 && locked[other.ID] && !slices.Contains(up, other.ID) {
					t.Fatalf("job %d overtakes job %d", m.ID, other.ID)
				}
			}
		}
		blocked := slices.ContainsFunc(a.Members, func(m Member) bool { return m.Blocked && !slices.Contains(up, m.ID) })
		if !more && blocked && ready < a.Limits.GroupPlaces(slots) {
			t.Fatalf("%d jobs are ready and another one is blocked, nothing more is to do, and the limits are %+v", ready, a.Limits)
		}
		if !more && (slots > max(a.Limits.GroupSlots(), int64(a.Claimed)) || ready > a.Limits.GroupPlaces(slots)) {
			t.Fatalf("%d claimed and scheduled jobs and %d ready ones are left, nothing more is to do, and the limits are %+v", slots, ready, a.Limits)
		}
	})
}
