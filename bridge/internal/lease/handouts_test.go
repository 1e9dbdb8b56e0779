package lease

import (
	"slices"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/bridge/internal/quota"
)

// TestHandOutOfAFailedSettleIsRecorded shows that the hand-out of a prefetched job is recorded after a settle that was
// under way when it was due, and failed. Otherwise the attempt would not count if the sidecar died.
func TestHandOutOfAFailedSettleIsRecorded(t *testing.T) {
	l := NewTable(func(map[string]string) (string, string) { return "", "" })
	var jobs []backends.Job
	var slots []backends.Slot
	for i := range 4 {
		token := backends.Token{Sidecar: 1, Number: uint64(i + 1)}
		jobs = append(jobs, backends.Job{ID: string(rune('a' + i)), Queue: "q", Token: token})
		slots = append(slots, backends.Slot{Token: token})
	}
	l.Expect(slots)
	l.Give(jobs, new(quota.Session), false, time.Now())
	for i := range jobs {
		l.NoteHandOut(jobs[i:i+1], "w", time.Duration(i+1))
	}
	acked, failed, held, later := jobs[0].Lease(), jobs[1].Lease(), jobs[2].Lease(), jobs[3].Lease()
	markedAcked, _ := l.BeginSettle([]backends.Lease{acked}, nil, nil)
	markedFailed, _ := l.BeginSettle([]backends.Lease{failed}, nil, nil)
	take := func(when string, age time.Duration, most bool, want ...backends.Lease) {
		t.Helper()
		due, more := l.UnrecordedHandOuts(5, age, 10)
		var got []backends.Lease
		for _, d := range due {
			if got = append(got, d.Lease); d.Ago != 5-time.Duration(slices.Index(leasesOf(jobs), d.Lease)+1) {
				t.Errorf("%v was handed out %v ago", d.Lease, d.Ago)
			}
		}
		if len(got) != len(want) || len(got) > 0 && got[0] != want[0] || more != most {
			t.Errorf("%s, %v are recorded and there are more: %v, want %v and %v", when, got, more, want, most)
		}
	}
	take("during two settles", 2, true, held)
	l.EndSettle(markedAcked, []backends.Lease{acked})
	l.EndSettle(markedFailed, nil)
	take("after them", 2, true, failed)
	take("at the end", 0, false, later)
}

func leasesOf(jobs []backends.Job) (all []backends.Lease) {
	for i := range jobs {
		all = append(all, jobs[i].Lease())
	}
	return all
}
