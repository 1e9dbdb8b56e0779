package backends_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// obstacles returns a set with a clock that the test moves, and its log.
func obstacles() (s *backends.ObstacleSet, clock *time.Time, log *bytes.Buffer) {
	clock, log = new(time.Time), new(bytes.Buffer)
	*clock = time.Unix(1_000_000, 0)
	return &backends.ObstacleSet{Log: slog.New(slog.NewJSONHandler(log, nil)), Now: func() time.Time { return *clock }}, clock, log
}

func giveBack(job string) backends.Obstacle {
	return backends.Obstacle{Queue: "q", Table: "t", Job: job, Doing: backends.DoingGiveBack, Err: errors.New("index u")}
}

// TestObstaclesAreRetriedRarely shows the pauses between tries, and that one line is logged at the start and at the end.
func TestObstaclesAreRetriedRarely(t *testing.T) {
	s, clock, log := obstacles()
	var pauses []time.Duration
	for range 9 {
		next := s.Note(giveBack("1"))
		if !s.Waits("q", "1", backends.DoingGiveBack) || s.Waits("q", "2", backends.DoingGiveBack) || s.Waits("q", "1", backends.DoingClaim) {
			t.Error("the wrong job waits")
		}
		s.Note(giveBack("1")) // another caller, at the same time
		pauses = append(pauses, next.Sub(*clock))
		*clock = next
		if s.Waits("q", "1", backends.DoingGiveBack) {
			t.Error("the job waits longer than told")
		}
	}
	want := "[5s 10s 20s 40s 1m20s 2m40s 5m0s 5m0s 5m0s]"
	if got := fmt.Sprint(pauses); got != want {
		t.Errorf("pauses of %s, want %s", got, want)
	}
	s.Clear("q", "1", backends.DoingGiveBack)
	found, gone := bytes.Count(log.Bytes(), []byte("obstacle_found")), bytes.Count(log.Bytes(), []byte("obstacle_gone"))
	if found != 1 || gone != 1 || len(s.Obstacles()) != 0 || s.Some() {
		t.Errorf("%d lines at the start, %d at the end, left %v:\n%s", found, gone, s.Obstacles(), log)
	}
}

// TestObstaclesHaveABound shows that a table whose rows are all refused becomes one obstacle, and fills no log.
func TestObstaclesHaveABound(t *testing.T) {
	s, clock, log := obstacles()
	for i := range 3 * backends.MaxObstacles {
		s.Note(giveBack(fmt.Sprint(i)))
	}
	jobs, queues := s.Waiting(backends.DoingGiveBack)
	if len(jobs) != backends.MaxObstacles || fmt.Sprint(queues) != "[q]" {
		t.Errorf("%d jobs and the queues %v wait", len(jobs), queues)
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 11 {
		t.Errorf("%d lines in the log", n)
	}
	if jobs, queues = s.Waiting(backends.DoingGiveBack, "other"); len(jobs)+len(queues) > 0 {
		t.Errorf("in another queue %v and %v wait", jobs, queues)
	}
	*clock = clock.Add(time.Minute)
	s.Note(giveBack("7"))
	s.Tried(*clock, func(o *backends.Obstacle) bool { return o.Job != "8" })
	if left := s.Obstacles(); len(left) != 2 {
		t.Errorf("%d obstacles are left, want the one of job 7, which was refused again, and that of job 8, which was not tried", len(left))
	}
}

// TestObstaclesOfTheLastConfig shows what a reload passes on.
func TestObstaclesOfTheLastConfig(t *testing.T) {
	last, _, _ := obstacles()
	next, _, log := obstacles()
	last.Note(giveBack("1"))
	gone := giveBack("2")
	gone.Queue = "gone"
	last.Note(gone)
	next.Inherit(last)
	next.Keep(func(o *backends.Obstacle) bool { return o.Queue == "q" })
	next.Note(giveBack("1"))
	next.RetryNow("q", backends.DoingGiveBack)
	if all := next.Obstacles(); len(all) != 1 || all[0].Job != "1" || next.Waits("q", "1", backends.DoingGiveBack) || bytes.Contains(log.Bytes(), []byte("obstacle_found")) {
		t.Errorf("left: %v, log:\n%s", all, log)
	}
}
