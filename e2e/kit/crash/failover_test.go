package crash

import (
	"strings"
	"testing"
	"time"
)

// lossyRun is the good run on a cluster whose failover loses what was committed from 10 to 14: the
// claim and the ack of job 1, which w5 gets again, and the enqueue of job 4.
func lossyRun() outcome {
	r := good()
	r.Lossy = true
	r.Enqueued = map[string]string{"one": "one", "two": "two", "three": "three", "four": "four"}
	with(&r,
		Record{At: 11, Asked: 9, Who: "producer", What: enqueued, Job: "1", Payload: "four"}, // job 1 of the new primary has another payload
		Record{At: 10, Until: 14, Who: Failover, What: Killed}, Record{At: 15, Who: "crash", What: Serves},
		Record{At: 17, Asked: 16, Who: "w5", Via: "a", What: claimed, Job: "1", Payload: "one", Fence: 2},
		Record{At: 18, Who: "w5", What: sending, Job: "1", Fence: 2}, Record{At: 19, Who: "w5", What: acked, Job: "1", Fence: 2},
	)
	return r
}

func TestCheckerCountsWhatAFailoverLoses(t *testing.T) {
	v := check(lossyRun())
	if len(v.Problems) > 0 {
		t.Fatalf("problems in a run without fault:\n%s", v.Summary(everyProblem))
	}
	if v.LostJobs != 1 || v.LostAcks != 1 || len(v.FirstAcks) != 1 || v.FirstAcks[0] != (FirstAck{"crash", 4}) || v.Errors["lease_lost"] != 1 {
		t.Errorf("counted %+v", v.Failovers)
	}
}

// TestCheckerKnowsPrefetchedClaims: w5 gets a job after the failover, which lost its claim.
func TestCheckerKnowsPrefetchedClaims(t *testing.T) {
	r := lossyRun()
	for i := range r.Records {
		if r.Records[i].Who == "w5" && r.Records[i].What == acked {
			r.Records[i].What = lost
		}
	}
	r.Waits = 2
	if v := check(r); len(v.Problems) > 0 {
		t.Errorf("problems in a run without fault:\n%s", v.Summary(everyProblem))
	}
}

// TestCheckerKnowsUnknownOutcomesOfAFailover: w1's ack gets no reply, and the failover lost it.
func TestCheckerKnowsUnknownOutcomesOfAFailover(t *testing.T) {
	r := lossyRun()
	without(&r, func(rec Record) bool { return rec.Who == "w1" && rec.Job == "1" && rec.What == acked })
	with(&r, Record{At: 13, Who: "w1", What: failed, Job: "1", Fence: 1, Code: "unknown_outcome"},
		Record{At: 15, Who: "w1", What: sending, Job: "1", Fence: 1}, Record{At: 16, Who: "w1", What: lost, Job: "1", Fence: 1})
	if v := check(r); len(v.Problems) > 0 || v.Unknown != 1 {
		t.Errorf("%v, problems in a run without fault:\n%s", v, v.Summary(everyProblem))
	}
}

func TestCheckerFindsLossesThatNoFailoverExplains(t *testing.T) {
	faults := []struct {
		name, want string
		spoil      func(*outcome)
	}{
		{"an enqueue before the failover", "job four was deleted without an ack", func(r *outcome) { setTimes(r, enqueued, 8, 9) }},
		{"an enqueue after the failover", "job four was deleted without an ack", func(r *outcome) { setTimes(r, enqueued, 15, 16) }},
		{"an ack before the failover", "delivered again though its ack was answered ok", func(r *outcome) { setTimes(r, Killed, 14, 15) }},
		{"an old lease that settles", "the old lease was acked after the newer claim", func(r *outcome) {
			without(r, func(rec Record) bool { return rec.Who == "w1" && rec.Job == "1" && rec.What != claimed })
			with(r, Record{At: 18, Who: "w1", What: sending, Job: "1", Fence: 1}, Record{At: 20, Who: "w1", What: acked, Job: "1", Fence: 1})
		}},
		{"the same fence", "the same fence twice", func(r *outcome) { setFence(r, "w5", "1", 1) }},
		{"a lease lost after the failover", "got lease_lost (fence 2) without a reason", func(r *outcome) {
			for i := range r.Records {
				if r.Records[i].Who == "w5" && r.Records[i].What == acked {
					r.Records[i].What = lost
				}
			}
		}},
		{"a job still in the table", "job 9 is still in the table", func(r *outcome) { r.Left = []string{"9"} }},
	}
	for _, f := range faults {
		t.Run(strings.ReplaceAll(f.name, " ", "-"), func(t *testing.T) {
			r := lossyRun()
			f.spoil(&r)
			if v := check(r); !strings.Contains(v.Summary(everyProblem), f.want) {
				t.Errorf("did not find %q; found:\n%s", f.want, v.Summary(everyProblem))
			}
		})
	}
}

// setTimes sets the time of the producer's record, or of the failover.
func setTimes(r *outcome, what eventKind, from, to int64) {
	for i := range r.Records {
		switch rec := &r.Records[i]; {
		case rec.What != what || rec.What == Killed && rec.Who != Failover:
		case what == Killed:
			rec.At, rec.Until = from, to
		default:
			rec.Asked, rec.At = from, to
		}
	}
	with(r) // sort
}

func TestCheckerMeasuresUnseenJobs(t *testing.T) {
	const s = int64(time.Second)
	other := func(at int64) Record {
		return Record{At: at, Asked: at, Who: "producer", Via: "a", What: enqueued, Job: "2"}
	}
	empty := func(at, asked int64) Record { return Record{At: at, Asked: asked, Who: "w8", Via: "a", What: nothing} }
	first := func(claimedAt int64) []Record { // of a job that is stored before
		return []Record{
			{At: s, Asked: s, Who: "producer", Via: "a", What: enqueued, Job: "0"},
			{At: claimedAt, Asked: claimedAt, Who: "w2", Via: "a", What: claimed, Job: "0", Payload: "zero", Fence: 1},
			{At: 8 * s, Who: "w2", What: sending, Job: "0"}, {At: 8 * s, Who: "w2", What: acked, Job: "0"},
		}
	}
	for name, c := range map[string]struct {
		add    []Record
		unseen int
		long   time.Duration
	}{
		"seen":                    {[]Record{empty(2*s, s), other(2 * s)}, 0, 0},
		"unseen":                  {[]Record{empty(3*s, 2*s), other(3 * s), empty(6*s, 5*s), other(5 * s)}, 1, 3 * time.Second},
		"while the server hangs":  {[]Record{empty(3*s, 2*s), other(3 * s), empty(6*s, 5*s), other(4 * s)}, 0, 0},
		"through another sidecar": {[]Record{{At: 3 * s, Asked: 2 * s, Who: "w9", Via: "b", What: nothing}, other(3 * s), empty(6*s, 5*s), other(5 * s)}, 0, 0},
		"behind a job":            {append(first(4*s), empty(3*s, 2*s), other(3*s), empty(6*s, 5*s), other(5*s)), 0, 0},
		"behind an unseen job":    {append(first(6*s+1), empty(3*s, 2*s), other(3*s), empty(6*s, 5*s), other(5*s)), 1, 3 * time.Second},
		"unseen during an event":  {[]Record{empty(6*s, 5*s), other(5 * s), {At: 3 * s, Until: 6 * s, Who: Connections, What: Killed}}, 0, 0},
		"unseen before the first ack": {[]Record{
			{At: 3 * s, Until: 4 * s, Who: Connections, What: Killed}, {At: 4 * s, Who: "crash", What: Serves}, empty(6*s, 5*s), other(5 * s),
		}, 0, 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			r := outcome{Enqueued: map[string]string{"1": "one"}, Records: []Record{
				{At: 2 * s, Asked: s, Who: "producer", What: enqueued, Job: "1"},
				{At: 7 * s, Asked: 7 * s, Who: "w1", What: claimed, Job: "1", Payload: "one", Fence: 1},
				{At: 8 * s, Who: "w1", What: sending, Job: "1"}, {At: 8 * s, Who: "w1", What: acked, Job: "1"},
			}}
			for _, rec := range c.add {
				if rec.What == claimed {
					r.Enqueued[rec.Job] = rec.Payload
				}
			}
			with(&r, c.add...)
			if v := check(r); v.Unseen != c.unseen || v.LongestUnseen != c.long || len(v.Problems) > 0 {
				t.Errorf("%+v, want %d for %v", v, c.unseen, c.long)
			}
		})
	}
}
