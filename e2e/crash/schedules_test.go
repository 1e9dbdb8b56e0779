package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSchedulesOfAFleet kills and starts sidecars at random. Each occurrence stores one job.
func TestSchedulesOfAFleet(t *testing.T) {
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		s, p := kit.NewPostgresSite(t)
		hosts := 4
		if kit.Soak {
			hosts = 20
		}
		scheduleFleet(t, s, hosts, func() []string {
			return p.Query(s.URL, "SELECT headers->>'qsidecar-schedule' || ' ' || (headers->>'qsidecar-occurrence') FROM qsidecar.qsidecar_jobs")
		})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		s := kit.NewSite(t)
		scheduleFleet(t, s, 1, func() []string {
			return s.Rows(`SELECT json_extract(headers, '$."qsidecar-schedule"') || ' ' || json_extract(headers, '$."qsidecar-occurrence"') FROM qsidecar_jobs`)
		})
	})
}

// scheduleFleet runs schedules of 1 to 5 s on n sidecars. jobs lists the name and the occurrence of each job.
func scheduleFleet(t *testing.T, s *kit.Site, n int, jobs func() []string) {
	random := testseed.Rand(t)
	rounds, schedules := 8, 10
	if kit.Soak { // ten minutes
		rounds, schedules = 300, 50
	}
	sidecars := make([]*kit.Sidecar, n)
	running := make([]bool, n)
	for i := range sidecars {
		sidecars[i], running[i] = s.Start(fmt.Sprint("s", i)), true
	}
	operator := sidecars[0].Dial()
	for i := range schedules {
		operator.Must(kit.Msg{"op": "schedule", "queue": "q", "schedule": kit.Msg{"name": fmt.Sprint("t", i), "every_ms": 1000 * (1 + i%5), "missed": "all"}})
	}
	stored := 0
	more := func() { // for about two seconds
		testwait.Until(t, "schedules store jobs", func() bool { now := len(jobs()); return now >= stored+schedules })
		stored = len(jobs())
	}
	more()
	for range rounds {
		i := random.IntN(n)
		if running[i] {
			sidecars[i].Kill()
		} else {
			sidecars[i].Start()
		}
		running[i] = !running[i]
		if n == 1 || !strings.Contains(fmt.Sprint(running), "true") { // no sidecar stores jobs
			sidecars[i].Start()
			running[i] = true
		}
		more()
	}
	for i := range sidecars {
		if running[i] {
			sidecars[i].Kill()
		}
	}
	checkOccurrences(t, jobs(), schedules)
}

// checkOccurrences checks that the jobs of each schedule have each occurrence from the first to the last one once.
func checkOccurrences(t *testing.T, jobs []string, schedules int) {
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
	if len(seen) != schedules {
		t.Errorf("%d schedules stored jobs, want %d", len(seen), schedules)
	}
	for i := range schedules {
		name, every := fmt.Sprint("t", i), time.Duration(1+i%5)*time.Second
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
	kit.Figure(t, "%d jobs of %d schedules, each occurrence once", len(jobs), schedules)
}
