package crash

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// good is a run without a problem. Worker w1 acks job 1. w1 claims job 2 and is killed, and w2
// claims it again. Job 3 is claimed through sidecar a, which is killed. Its ack was carried out,
// but not answered.
func good() outcome {
	return outcome{
		Enqueued: map[string]string{"1": "one", "2": "two", "3": "three"},
		Records: []Record{
			{At: 11, Asked: 10, Who: "w1", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 1, Attempt: 1},
			{At: 12, Who: "w1", What: sending, Job: "1", Fence: 1},
			{At: 13, Who: "w1", What: acked, Job: "1", Fence: 1},
			{At: 21, Asked: 20, Who: "w1", Via: "a", What: claimed, Job: "2", Payload: "two", Fence: 1, Attempt: 1},
			{At: 22, Who: "w1", What: sending, Job: "2", Fence: 1},
			{At: 23, Until: 24, Who: "w1", What: Killed},
			{At: 25, Asked: 14, Who: "w2", Via: "a", What: claimed, Job: "2", Payload: "two", Fence: 2, Attempt: 2},
			{At: 26, Who: "w2", What: sending, Job: "2", Fence: 2},
			{At: 27, Who: "w2", What: acked, Job: "2", Fence: 2},
			{At: 31, Asked: 30, Who: "w3", Via: "a", What: claimed, Job: "3", Payload: "three", Fence: 1, Attempt: 1},
			{At: 32, Who: "w3", What: sending, Job: "3", Fence: 1},
			{At: 33, Until: 33, Who: "a", What: Killed},
			{At: 34, Who: "w3", What: bound, Job: "3", Fence: 1},
			{At: 35, Who: "w3", What: sending, Job: "3", Fence: 1},
			{At: 36, Who: "w3", What: lost, Job: "3", Fence: 1},
		},
	}
}

// without removes the records that match.
func without(r *outcome, match func(Record) bool) {
	r.Records = slices.DeleteFunc(r.Records, match)
}

// with adds a record at its time.
func with(r *outcome, recs ...Record) {
	r.Records = append(r.Records, recs...)
	slices.SortStableFunc(r.Records, func(a, b Record) int { return int(a.At - b.At) })
}

func TestCheckerAcceptsAGoodRun(t *testing.T) {
	v := check(good())
	if len(v.Problems) > 0 {
		t.Fatalf("problems in a run without fault:\n%s", v.Summary(10))
	}
	if v.Jobs != 3 || v.Deliveries != 4 || v.Redelivered != 1 || v.Kills != 2 || v.InDoubt != 1 || v.Bound != 1 || v.Overlaps != 0 {
		t.Errorf("counted %+v", v)
	}
}

func TestCheckerCountsAnOverlapThroughAKill(t *testing.T) {
	r := good() // w4 gets job 3 after the sidecar's kill, while w3 still relies on its lease
	with(&r, Record{At: 35, Asked: 29, Who: "w4", Via: "b", What: claimed, Job: "3", Payload: "three", Fence: 2})
	with(&r, Record{At: 37, Who: "w4", What: sending, Job: "3"}, Record{At: 38, Who: "w4", What: acked, Job: "3"})
	if v := check(r); len(v.Problems) > 0 || v.Overlaps != 1 {
		t.Errorf("%v\n%s", v, v.Summary(10))
	}
}

// TestCheckerCountsALateDelivery checks a claim that a stopped sidecar wrote before another worker
// got the job. The other worker's lease is the newer one.
func TestCheckerCountsALateDelivery(t *testing.T) {
	r := good()
	without(&r, func(rec Record) bool { return rec.Job == "3" })
	with(&r, Record{At: 40, Asked: 30, Who: "w3", Via: "a", What: claimed, Job: "3", Payload: "three", Fence: 1},
		Record{At: 41, Who: "w3", What: sending, Job: "3"}, Record{At: 42, Who: "w3", What: lost, Job: "3"})
	with(&r, Record{At: 35, Asked: 34, Who: "w4", Via: "b", What: claimed, Job: "3", Payload: "three", Fence: 2},
		Record{At: 36, Who: "w4", What: sending, Job: "3"}, Record{At: 37, Who: "w4", What: acked, Job: "3"})
	if v := check(r); len(v.Problems) > 0 || v.Stale != 1 || v.Acked != 3 {
		t.Errorf("%v\n%s", v, v.Summary(10))
	}
	for i := range r.Records { // if the late one had been settled, an invalid lease would have won
		if r.Records[i].Who == "w3" && r.Records[i].What == lost {
			r.Records[i].What = acked
		}
	}
	if v := check(r); len(v.Problems) == 0 {
		t.Error("an ack with an old lease went through unnoticed")
	}
}

// TestCheckerAcceptsThatKillsTakeTime checks that a kill explains what its victim does between the
// killer's reading of the clock and its death.
func TestCheckerAcceptsThatKillsTakeTime(t *testing.T) {
	r := good()
	for i, rec := range r.Records {
		if rec.Who == "w1" && rec.What == Killed {
			r.Records[i].At = 19 // before w1 requested job 2
		}
	}
	if v := check(r); len(v.Problems) > 0 {
		t.Errorf("%v\n%s", v, v.Summary(10))
	}
	for i := range r.Records {
		r.Records[i].Until = 0
	}
	if v := check(r); len(v.Problems) != 1 {
		t.Errorf("a kill that was over before explains a later delivery: %v", v)
	}
}

// TestCheckerAcceptsAnUnknownOutcome checks a connection that ended during a successful ack, so
// that the repeated ack finds the lease lost.
func TestCheckerAcceptsAnUnknownOutcome(t *testing.T) {
	r := good()
	without(&r, func(rec Record) bool { return rec.Job == "1" && rec.What == acked })
	with(&r, Record{At: 12, Until: 13, Who: Connections, What: Killed},
		Record{At: 14, Who: "w1", What: failed, Job: "1", Fence: 1, Code: "unknown_outcome"},
		Record{At: 15, Who: "w1", What: sending, Job: "1", Fence: 1}, Record{At: 16, Who: "w1", What: lost, Job: "1", Fence: 1})
	if v := check(r); len(v.Problems) > 0 || v.Unknown != 1 || v.Cuts != 1 || v.Lost != 2 {
		t.Errorf("%v\n%s", v, v.Summary(10))
	}
}

// TestCheckerAcceptsASlowDatabase checks that an outcome can be unknown if the database took longer
// than a settle waits, and only then.
func TestCheckerAcceptsASlowDatabase(t *testing.T) {
	for waits, problems := range map[time.Duration]int{1: 0, 2: 1} {
		r := good()
		r.Waits = waits
		without(&r, func(rec Record) bool { return rec.Job == "1" && rec.What == acked })
		with(&r, Record{At: 13, Who: "w1", What: failed, Job: "1", Fence: 1, Code: "unknown_outcome"},
			Record{At: 14, Who: "w1", What: sending, Job: "1", Fence: 1}, Record{At: 15, Who: "w1", What: acked, Job: "1", Fence: 1})
		if v := check(r); len(v.Problems) != problems || v.Unknown != 1 {
			t.Errorf("waits %d: %v\n%s", waits, v, v.Summary(10))
		}
	}
}

// TestCheckerFindsFaults changes the good run in one way at a time.
func TestCheckerFindsFaults(t *testing.T) {
	faults := []struct {
		name, want string
		spoil      func(*outcome)
	}{
		{"a job without a settle", "job 1 was deleted without an ack", func(r *outcome) {
			without(r, func(rec Record) bool { return rec.Job == "1" })
		}},
		{"a claimed job that was deleted", "job 1 was deleted without an ack", func(r *outcome) {
			without(r, func(rec Record) bool { return rec.Job == "1" && rec.What != claimed })
		}},
		{"a job still in the table", "job 3 is still in the table", func(r *outcome) { r.Left = []string{"3"} }},
		{"an acked job still in the table", "its ack was answered ok and it is still", func(r *outcome) { r.Left = []string{"1"} }},
		{"a row that was not enqueued", "job 77 is still in the table", func(r *outcome) { r.Left = []string{"77"} }},
		{"two at once", "delivered again without a kill (overlap: true)", func(r *outcome) {
			with(r, Record{At: 12, Asked: 5, Who: "w9", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
		{"two at once after a kill of another worker", "delivered again without a kill (overlap: true)", func(r *outcome) {
			with(r, Record{At: 11, Who: "w8", What: Killed})
			with(r, Record{At: 12, Asked: 5, Who: "w9", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
		{"two at once after an earlier kill", "delivered again without a kill (overlap: true)", func(r *outcome) {
			with(r, Record{At: 9, Who: "a", What: Killed})
			with(r, Record{At: 12, Asked: 5, Who: "w9", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
		{"delivered after its ack, sidecar killed", "delivered again though its ack was answered ok", func(r *outcome) {
			with(r, Record{At: 40, Asked: 39, Who: "w9", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
		{"acked twice", "2 acks were answered ok", func(r *outcome) {
			with(r, Record{At: 34, Asked: 33, Who: "w9", Via: "b", What: claimed, Job: "2", Payload: "two", Fence: 3})
			with(r, Record{At: 35, Who: "w9", What: acked, Job: "2", Fence: 3})
		}},
		{"the same fence", "the same fence twice", func(r *outcome) { setFence(r, "w2", "2", 1) }},
		{"a fence that goes back", "the fence went back", func(r *outcome) {
			setFence(r, "w1", "2", 9)
			without(r, func(rec Record) bool { return rec.Who == "w2" && rec.What == claimed })
			with(r, Record{At: 25, Asked: 24, Who: "w2", Via: "a", What: claimed, Job: "2", Payload: "two", Fence: 2})
		}},
		{"another payload", `the payload "one" came back as "two"`, func(r *outcome) { r.Enqueued["1"] = "one"; r.Records[0].Payload = "two" }},
		{"a job from nowhere", "job 1 was delivered and never enqueued", func(r *outcome) { delete(r.Enqueued, "1") }},
		{"an ack from nowhere", "without having claimed it", func(r *outcome) {
			with(r, Record{At: 40, Who: "w9", What: acked, Job: "1"})
		}},
		{"a lease lost for no reason", "got lease_lost (fence 1) without a reason", func(r *outcome) {
			with(r, Record{At: 12, Who: "w1", What: lost, Job: "1", Fence: 1})
		}},
		{"a lease lost after an ack that was answered unavailable", "without a reason", func(r *outcome) {
			without(r, func(rec Record) bool { return rec.Job == "1" && rec.What == acked })
			with(r, Record{At: 13, Who: "w1", What: failed, Job: "1", Fence: 1, Code: "unavailable"},
				Record{At: 14, Who: "w1", What: sending, Job: "1", Fence: 1}, Record{At: 15, Who: "w1", What: lost, Job: "1", Fence: 1})
		}},
		{"an unknown outcome for no reason", "nothing had broken", func(r *outcome) {
			with(r, Record{At: 12, Who: "w1", What: failed, Job: "1", Fence: 1, Code: "unknown_outcome"})
		}},
		{"a second delivery through a connection's end", "delivered again without a kill", func(r *outcome) {
			with(r, Record{At: 11, Until: 12, Who: Connections, What: Killed})
			with(r, Record{At: 12, Asked: 5, Who: "w9", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
		{"twice to one worker", "who had it already", func(r *outcome) {
			with(r, Record{At: 12, Asked: 5, Who: "w1", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2})
		}},
	}
	for _, f := range faults {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			r := good()
			f.spoil(&r)
			v := check(r)
			if !strings.Contains(v.Summary(everyProblem), f.want) {
				t.Errorf("did not find %q; found:\n%s", f.want, v.Summary(everyProblem))
			}
		})
	}
}

const everyProblem = 100

func setFence(r *outcome, who, job string, fence int64) {
	for i := range r.Records {
		if r.Records[i].Who == who && r.Records[i].Job == job {
			r.Records[i].Fence = fence
		}
	}
}

func TestHistoriesAreMergedByTime(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{"b", "a"} {
		h, err := openHistory(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		defer h.file.Close()
		for at := range 3 {
			if err := h.Add(Record{At: int64(at*2 + i + 1), Who: name, What: claimed, Job: fmt.Sprint(at)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	recs, err := readHistories(dir)
	if err != nil || len(recs) != 6 {
		t.Fatalf("%d records, %v", len(recs), err)
	}
	for i, r := range recs {
		if r.At != int64(i+1) {
			t.Errorf("record %d is of %d", i, r.At)
		}
	}
}
