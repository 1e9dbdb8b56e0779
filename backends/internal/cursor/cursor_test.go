package cursor

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestSegments: the segments of a claim together are everything above the lows, and contain each spot once.
func TestSegments(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{-9, 100}, {0, 50}, {0, 60}, {5, 7}}, All: true, Returns: 3})
	want := []Segment{
		{Beginning, Spot{-10, End.Position}}, {Spot{-9, 100}, Spot{-1, End.Position}}, {Spot{0, 60}, Spot{4, End.Position}}, {Spot{5, 7}, End},
		{Spot{-9, 0}, Spot{-9, 100}}, {Spot{0, 0}, Spot{0, 60}}, {Spot{5, 0}, Spot{5, 7}},
	}
	if got := c.Segments("q", now, false); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	full := []Segment{
		{Beginning, Spot{-10, End.Position}}, {Spot{-9, 0}, Spot{-1, End.Position}}, {Spot{0, 0}, Spot{4, End.Position}}, {Spot{5, 0}, End},
	}
	if got := c.Segments("q", now.Add(fullScanInterval), false); !slices.Equal(got, full) {
		t.Errorf("after a while got %v, want %v", got, full)
	}
	c.Back([]GiveBack{{"q", Spot{0, 20}, 4}}) // this is the next count, so the return is our own
	if got := c.Segments("q", now, false); got[2].From != (Spot{0, 19}) {
		t.Errorf("after a give-back got %v", got)
	}
	if c.Returned("q", 4) || !c.Returned("q", 5) {
		t.Error("another's give-back is not noticed, or one's own is")
	}
	if got := c.Segments("other", now, false); !slices.Equal(got, []Segment{{Beginning, End}}) {
		t.Errorf("an unknown queue gives %v", got)
	}
}

// TestANewCursorHasSeenNothing: a claim scanned everything from the lows of a cursor. That proves nothing for
// the cursor that replaces it.
func TestANewCursorHasSeenNothing(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 50}}, All: true, Returns: 3})
	if _, near := c.Near("q", now); !near {
		t.Fatal("everything was looked at, and is to be looked at again")
	}
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 60}}, All: true, Returns: 4}) // a job returned to its old position
	if near, ok := c.Near("q", now); ok {
		t.Errorf("the next claim looks at %v alone", near)
	}
}

func TestProofs(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	learn := func(position, ended, begun int64) {
		c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, position}}, Ended: ended, Begun: begun})
	}
	low := func() int64 { return c.of["q"].marks[0].low }
	learn(provenStep, 10, 20)
	if _, ok := c.ToProve("q"); ok {
		t.Fatal("so little needs no proof")
	}
	learn(2000, 10, 20)
	if _, ok := c.ToProve("q"); ok {
		t.Fatal("the transactions of then are not over")
	}
	learn(2100, 20, 30)
	p, ok := c.ToProve("q")
	if !ok || p.High[0] != 2000 {
		t.Fatalf("to prove: %+v, %v", p, ok)
	}
	c.Advance(p, 19, []int64{0})
	if low() != 0 {
		t.Fatal("a snapshot that is too old proves nothing")
	}
	c.Advance(p, 20, []int64{1234})
	if low() != 1233 {
		t.Fatalf("low is %d, want just before the first ready one", low())
	}
	c.Advance(p, 25, []int64{0})
	if low() != 1233 {
		t.Fatal("an old proof was taken for a new one")
	}
	learn(5000, 30, 40)
	learn(5001, 40, 50)
	p, _ = c.ToProve("q")
	c.Learn("q", Learned{Asked: now, Returns: 1}) // another sidecar returned a job
	c.Advance(p, 50, []int64{0})
	if k := c.of["q"]; len(k.marks) != 0 {
		t.Fatalf("a proof outlived a give-back: %+v", k)
	}
}

// TestAProofNeedsALaterNumber: if a claim has no number of its own, its proof waits for the number of a
// transaction that began after the claim was learned.
func TestAProofNeedsALaterNumber(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	before := c.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2000}}, Ended: 100})
	c.Numbered(before, 50)
	if p, ok := c.ToProve("q"); ok {
		t.Fatalf("a number that was given before the job was claimed proves %+v", p)
	}
	c.Numbered(c.Now(), 120)
	c.Numbered(before, 60)
	if p, ok := c.ToProve("q"); ok {
		t.Fatalf("transaction 120 is not over, and %+v can be proven", p)
	}
	c.Learn("q", Learned{Asked: now, Ended: 120})
	p, ok := c.ToProve("q")
	if !ok || p.High[0] != 2000 || p.after != 120 {
		t.Fatalf("to prove: %+v, %v, want up to 2000 after 120", p, ok)
	}
}

// TestAResetForgetsWhatIsUnderWay: a claim, a number and a proof from before a reset have no effect on the
// positions that are given after it.
func TestAResetForgetsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	began := c.Now()
	learn := func(began Event) {
		c.Learn("q", Learned{Asked: now, Began: began, Taken: []Spot{{0, 2000}}, All: true, Ended: 100})
	}
	learn(began)
	c.Numbered(c.Now(), 50)
	p, ok := c.ToProve("q")
	if !ok {
		t.Fatal("nothing can be proven")
	}
	c.Reset()
	learn(began)
	learn(Never)
	c.Numbered(began, 50)
	if c.of["q"] != nil || c.laterNumber != 0 {
		t.Fatalf("learned %+v and the number %d", c.of["q"], c.laterNumber)
	}
	learn(c.Now())
	c.Advance(p, 100, []int64{0})
	if lows := c.Lows("q"); lows[0].Position != 0 {
		t.Errorf("a proof from before the reset moved a low to %v", lows)
	}
}

// TestRangeFarBehindIsScannedLessOften: if a low can't move, the range behind the heads is scanned less often the
// larger it is, and other claims leave it out.
func TestRangeFarBehindIsScannedLessOften(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	learn := func(position int64, took time.Duration) {
		c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, position}}, All: true, Took: took, Ended: 10})
	}
	looks := func(after time.Duration, want bool) {
		t.Helper()
		if pieces, all := c.Pieces("q", now.Add(after)); all != want {
			t.Errorf("after %v a claim looks at %v, all of it: %v", after, pieces, all)
		}
	}
	learn(nearBehind, time.Minute)
	looks(0, true) // the machine is slow
	learn(500_000, quickScan-1)
	looks(0, true) // other sidecars' positions
	learn(500_000, 250*time.Millisecond)
	looks(5*time.Second-1, false)
	looks(5*time.Second, true)
	learn(1<<40, time.Second)
	looks(rarestFullScan-1, false)
	looks(rarestFullScan, true)
	c.Scanned("q", now.Add(rarestFullScan), time.Second)
	looks(2*rarestFullScan-1, false)
	if pieces, _ := c.Pieces("q", now.Add(rarestFullScan)); len(pieces) != 2 || pieces[1].From != (Spot{0, 1 << 40}) {
		t.Errorf("a claim looks at %v, want from the head on alone", pieces)
	}
}

// TestBelowUnprovenLowsIsScanned: if a low is likely but not proven, claims scan the whole index again, less
// often the more that costs.
func TestBelowUnprovenLowsIsScanned(t *testing.T) {
	t.Parallel()
	for _, share := range []int{RareShare, OftenShare} {
		belowUnprovenLows(t, share)
	}
}

func belowUnprovenLows(t *testing.T, share int) {
	t.Helper()
	c := Set{Share: share}
	now := time.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2000}}, All: true, Whole: true, Took: wholeScanInterval, Ended: 10, Begun: 10})
	p, ok := c.ToProve("q")
	if !ok {
		t.Fatal("nothing can be proven")
	}
	c.Advance(p, 10, []int64{0})
	due := func(after time.Duration) bool {
		whole := c.Segments("q", now.Add(after), true)[0] == Whole
		if pieces, all := c.Pieces("q", now.Add(after)); !all || (pieces[0] == Whole) != whole {
			t.Errorf("after %v Pieces are %v, all of them: %v", after, pieces, all)
		}
		return whole
	}
	if due(time.Duration(share)*wholeScanInterval-1) || !due(time.Duration(share)*wholeScanInterval) {
		t.Errorf("a look that took %v is not made again after %d times that", wholeScanInterval, share)
	}
	now = now.Add(time.Minute)
	c.ScannedWhole("q", now, 0)
	if due(wholeScanInterval-1) || !due(wholeScanInterval) {
		t.Errorf("a look that took no time is not made again after %v", wholeScanInterval)
	}
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 1000}}, All: true, Whole: true, Ended: 10, Begun: 20})
	if lows := c.Lows("q"); lows[0].Position != 999 {
		t.Errorf("a job at 1000 came in below the low, which is %v now", lows)
	}
	proven := Set{}
	proven.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2000}}, All: true, Whole: true})
	if proven.Segments("q", now.Add(forgetAfter), true)[0] == Whole {
		t.Error("a proven low is looked below")
	}
}

// TestCursorsAreBounded: if more queues are used than there can be cursors, a new cursor replaces one other, and
// never the one that was used last.
func TestCursorsAreBounded(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	for i := range 2 * maxCursors {
		c.Learn(fmt.Sprint(i), Learned{Asked: now})
		if n := len(c.of); n != min(i+1, maxCursors) || i > 0 && c.of[fmt.Sprint(i-1)] == nil {
			t.Fatalf("after %d queues there are %d cursors, and that of the queue before is %v", i+1, n, c.of[fmt.Sprint(i-1)])
		}
	}
	last := fmt.Sprint(2*maxCursors - 1)
	c.Learn(last, Learned{Asked: now, Returns: 1}) // a job returned to its old position, so its cursor starts again
	if n := len(c.of); n != maxCursors || c.of[last].returns != 1 {
		t.Errorf("there are %d cursors after one of them started again, want %d", n, maxCursors)
	}
	for i := range 2 * maxMarks {
		c.Learn("q", Learned{Asked: now, Taken: []Spot{{int32(i), 1}}})
	}
	if k := c.of["q"]; k != nil && len(k.marks) > maxMarks {
		t.Errorf("%d marks", len(k.marks))
	}
}

// TestAnOldCursorIsForgotten: after forgetAfter a claim scans everything, also below proven lows. So the damage ends if positions
// were given again and nothing noticed it.
func TestAnOldCursorIsForgotten(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2000}}, All: true, Ended: 10, Begun: 10})
	p, ok := c.ToProve("q")
	if !ok {
		t.Fatal("nothing can be proven")
	}
	c.Advance(p, 10, []int64{0})
	now = now.Add(forgetAfter)
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2001}}, All: true})
	if _, near := c.Near("q", now); !near || c.Lows("q")[0].Position != 2000 {
		t.Fatalf("the cursor is forgotten too early: %v", c.Lows("q"))
	}
	now = now.Add(1)
	segments := c.Segments("q", now, false)
	pieces, all := c.Pieces("q", now)
	near, ok := c.Near("q", now)
	if want := []Segment{Whole}; !slices.Equal(segments, want) || !slices.Equal(pieces, want) || !all || ok {
		t.Errorf("a claim scans %v, or the pieces %v, or %v alone", segments, pieces, near)
	}
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2002}}})
	if lows := c.Lows("q"); lows[0].Position != 0 {
		t.Errorf("the next cursor has the lows %v of the former one", lows)
	}
}

// TestAFullScanIsNotAWholeOne: where lows are unproven, a scan from the lows on doesn't delay the one of everything.
func TestAFullScanIsNotAWholeOne(t *testing.T) {
	t.Parallel()
	c := Set{Share: RareShare}
	now := time.Now()
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2000}}, All: true, Whole: true})
	now = now.Add(wholeScanInterval - 1)
	c.Learn("q", Learned{Asked: now, Taken: []Spot{{0, 2001}}, All: true})
	if _, near := c.Near("q", now); !near {
		t.Fatal("a scan of everything is due too early")
	}
	if near, ok := c.Near("q", now.Add(1)); ok {
		t.Errorf("a scan of everything is due, and a claim scans %v alone", near)
	}
}

// TestTimesLimitAProof: where positions are times, a job can be ready at a position in the future. A proof doesn't go beyond the
// present time, because jobs between the two will still appear.
func TestTimesLimitAProof(t *testing.T) {
	t.Parallel()
	var c Set
	c.Learn("q", Learned{Asked: time.Now(), Taken: []Spot{{0, 5000}}, Ended: 10, Begun: 10, Below: 3000})
	if p, ok := c.ToProve("q"); !ok || p.High[0] != 3000 {
		t.Errorf("to prove: %+v, %v, want up to 3000", p, ok)
	}
}

// TestReturnedBehindALow: a job that returns behind a low lowers it, and ends a pending proof that would pass the job. A return by
// another sidecar in between is at an unknown position, so the cursor starts again.
func TestReturnedBehindALow(t *testing.T) {
	t.Parallel()
	var c Set
	now := time.Now()
	learn := func(ended, begun, returns int64, taken ...Spot) {
		c.Learn("q", Learned{Asked: now, Taken: taken, All: true, Ended: ended, Begun: begun, Returns: returns})
	}
	learn(10, 10, 0, Spot{0, 2000})
	p, _ := c.ToProve("q")
	c.Advance(p, 10, []int64{0})
	learn(10, 20, 0, Spot{0, 4000})
	c.Back([]GiveBack{{"q", Spot{0, 1500}, 1}})
	if lows := c.Lows("q"); lows[0].Position != 1499 {
		t.Errorf("the low is %v, and the job at 1500 is ready", lows)
	}
	if got := c.Segments("q", now, false); got[1].From != (Spot{0, 1499}) {
		t.Errorf("the next claim scans %v, want from 1499 on", got)
	}
	learn(20, 30, 1)
	if p, ok := c.ToProve("q"); ok {
		t.Errorf("the proof %+v is still pending", p)
	}
	c.Back([]GiveBack{{"q", Spot{0, 3000}, 3}, {"other", Spot{0, 1}, 1}})
	if got := c.Segments("q", now, false); !slices.Equal(got, []Segment{Whole}) {
		t.Errorf("another sidecar returned a job, and the next claim scans %v", got)
	}
}

// TestOverNeedsALaterEvent: that the transactions from before an event are over proves only what was learned before that event.
func TestOverNeedsALaterEvent(t *testing.T) {
	t.Parallel()
	var c Set
	before := c.Now()
	c.Learn("q", Learned{Asked: time.Now(), Taken: []Spot{{0, 2000}}, Ended: 10})
	c.Over(before)
	if p, ok := c.ToProve("q"); ok {
		t.Errorf("transactions that drew their positions later can be open, and %+v can be proven", p)
	}
	c.Over(c.Now())
	p, ok := c.ToProve("q")
	if !ok {
		t.Fatal("all transactions are over, and nothing can be proven")
	}
	if c.Advance(p, 0, []int64{0}); c.Lows("q")[0].Position != 2000 {
		t.Errorf("the proof moved the low to %v", c.Lows("q"))
	}
}
