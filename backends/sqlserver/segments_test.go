package sqlserver

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/qsidecar/qsidecar/backends/internal/core"
	"github.com/qsidecar/qsidecar/backends/internal/cursor"
)

// holds counts how often a ready row is in the pieces that the server reads.
func holds(rows []segmentRow, priority int16, position int64) (n int) {
	for _, r := range rows {
		if r.Highest == r.Lowest && priority == r.Highest && position > r.Low && position <= r.High ||
			r.Highest > r.Lowest && priority <= r.Highest && priority >= r.Lowest {
			n++
		}
	}
	return n
}

// TestSegments shows that each position of an index is in the pieces as often as in the segments that they come from,
// and that the pieces keep their order.
func TestSegments(t *testing.T) {
	t.Parallel()
	urgency := rapid.OneOf(rapid.Int32Range(-3, 3), rapid.SampledFrom([]int32{cursor.Beginning.Urgency, mostUrgent, mostUrgent + 1, leastUrgent - 1, leastUrgent, cursor.End.Urgency}))
	position := rapid.OneOf(rapid.Int64Range(0, 9), rapid.SampledFrom([]int64{1000, math.MaxInt64 - 1, math.MaxInt64}))
	spot := rapid.Custom(func(t *rapid.T) cursor.Spot {
		return cursor.Spot{Urgency: urgency.Draw(t, "u"), Position: position.Draw(t, "p")}
	})
	rapid.Check(t, func(t *rapid.T) {
		var all []cursor.Segment
		for range rapid.IntRange(1, 4).Draw(t, "segments") {
			from, to := spot.Draw(t, "from"), spot.Draw(t, "to")
			if follows(to, from) {
				from, to = to, from
			}
			all = append(all, cursor.Segment{From: from, To: to})
		}
		var pieces []core.Piece
		for _, s := range all {
			pieces = append(pieces, core.Piece{Queue: 6, Segment: s})
		}
		rows := segmentsOf(pieces, func(int) string { return "q" })
		for i, r := range rows {
			if r.N != i+1 || r.Queue != "q" || r.Policy != 7 || r.Highest < r.Lowest || r.Highest == r.Lowest && r.Low >= r.High {
				t.Fatalf("piece %d is %+v", i, r)
			}
		}
		u := rapid.OneOf(rapid.Int32Range(-4, 4), rapid.SampledFrom([]int32{mostUrgent, mostUrgent + 1, leastUrgent - 1, leastUrgent})).Draw(t, "row's u")
		at := cursor.Spot{Urgency: u, Position: max(position.Draw(t, "row's p"), 1)}
		want := 0
		for _, s := range all {
			if follows(s.From, at) && !follows(s.To, at) {
				want++
			}
		}
		if got := holds(rows, int16(-at.Urgency), at.Position); got != want {
			t.Fatalf("%+v is in the pieces %d times, and in the segments %d times\n%+v\n%+v", at, got, want, all, rows)
		}
	})
}

// follows reports whether y comes after x.
func follows(x, y cursor.Spot) bool {
	return y.Urgency > x.Urgency || y.Urgency == x.Urgency && y.Position > x.Position
}

// TestWholeQueue shows that the usual claim is one piece.
func TestWholeQueue(t *testing.T) {
	t.Parallel()
	rows := segments(nil, "q", 1, cursor.Whole)
	if len(rows) != 1 || rows[0].Highest != math.MaxInt16 || rows[0].Lowest != math.MinInt16 {
		t.Errorf("%+v", rows)
	}
}
