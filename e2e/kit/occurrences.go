package kit

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// DeclareSchedules declares n schedules of the queue, which store a job every 1 to 5 s.
func DeclareSchedules(c *Conn, queue string, n int) {
	for i := range n {
		c.Must(Msg{"op": "schedule", "queue": queue, "schedule": Msg{"name": fmt.Sprint("t", i), "every_ms": everyOf(i).Milliseconds(), "missed": "all"}})
	}
}

func everyOf(i int) time.Duration { return time.Duration(1+i%5) * time.Second }

// CheckOccurrences checks that the jobs of each schedule of DeclareSchedules have each occurrence from the first to the last one, once.
// A job is given as the name and the occurrence. Other schedules are passed over.
func CheckOccurrences(t *testing.T, jobs []string, n int) {
	t.Helper()
	seen := map[string]map[time.Time]int{}
	for _, j := range jobs {
		name, text, _ := strings.Cut(j, " ")
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		if seen[name] == nil {
			seen[name] = map[time.Time]int{}
		}
		seen[name][at]++
	}
	for i := range n {
		name, every := fmt.Sprint("t", i), everyOf(i)
		if len(seen[name]) == 0 {
			t.Errorf("%s stored no job", name)
			continue
		}
		var first, last time.Time
		for at, n := range seen[name] {
			if n != 1 {
				t.Errorf("%s: %d jobs of the occurrence %v", name, n, at)
			}
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
		for at := first; at.Before(last); at = at.Add(every) {
			if seen[name][at] == 0 {
				t.Errorf("%s: no job of the occurrence %v", name, at)
			}
		}
		if want := int(last.Sub(first)/every) + 1; len(seen[name]) != want {
			t.Errorf("%s: %d occurrences, want %d", name, len(seen[name]), want)
		}
	}
	Figure(t, "%d jobs of schedules, each occurrence once", len(jobs))
}
