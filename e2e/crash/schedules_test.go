package crash

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testseed"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSchedulesOfAFleet kills and starts sidecars at random. Each occurrence stores one job. Workers of two versions declare a
// schedule, and at last no sidecar runs for some seconds.
func TestSchedulesOfAFleet(t *testing.T) {
	hosts := 4
	if kit.Soak {
		hosts = 20
	}
	databases.OwnMySQL(t)
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		s, p := kit.NewPostgresSite(t)
		db := databases.Owners(t, p.URL)
		f := &fleet{t: t, site: s, jobs: func() []string {
			return db.Texts("SELECT headers->>'qsidecar-schedule' || ' ' || (headers->>'qsidecar-occurrence') FROM qsidecar.qsidecar_jobs")
		}}
		f.run(hosts)
	})
	t.Run("MySQL", func(t *testing.T) {
		t.Parallel()
		p, err := databases.StartMySQL(t, testserver.MySQL97, testserver.Options{Durable: true})
		if err != nil {
			t.Fatal(err)
		}
		s := kit.NewSite(t)
		s.URL = p.URL(p.Name)
		db := databases.OwnersDB{T: t, DB: p.DB(t)}
		f := &fleet{t: t, site: s, jobs: func() []string {
			return db.Texts(`SELECT CONCAT(headers->>'$."qsidecar-schedule"', ' ', headers->>'$."qsidecar-occurrence"') FROM qsidecar_jobs`)
		}}
		f.run(hosts)
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		s := kit.NewSite(t)
		f := &fleet{t: t, site: s, jobs: func() []string {
			return s.Rows(`SELECT json_extract(headers, '$."qsidecar-schedule"') || ' ' || json_extract(headers, '$."qsidecar-occurrence"') FROM qsidecar_jobs`)
		}}
		f.run(1)
	})
}

// fleet are sidecars of a database with schedules.
type fleet struct {
	t        *testing.T
	site     *kit.Site
	jobs     func() []string // the name and the occurrence of each job
	sidecars []*kit.Sidecar
	running  []bool
	stored   int
}

// run runs schedules of 1 to 5 s on n sidecars.
func (f *fleet) run(n int) {
	random := testseed.Rand(f.t)
	rounds, schedules := 8, 10
	if kit.Soak { // ten minutes
		rounds, schedules = 300, 50
	}
	for i := range n {
		f.sidecars, f.running = append(f.sidecars, f.site.Start(fmt.Sprint("s", i))), append(f.running, true)
	}
	kit.DeclareSchedules(f.sidecars[0].Dial(), "q", schedules)
	f.more(schedules)
	for round := range rounds {
		i := random.IntN(n)
		if f.running[i] {
			f.sidecars[i].Kill()
		} else {
			f.sidecars[i].Start()
		}
		f.running[i] = !f.running[i]
		if n == 1 || !slices.Contains(f.running, true) { // no sidecar stores jobs
			f.sidecars[i].Start()
			f.running[i] = true
		}
		f.declare(1 + (round+1)%2)
		f.more(schedules)
	}
	f.declare(2)
	if got := f.any().Dial().Must(kit.Msg{"op": "schedules", "schedule": kit.Msg{"name": "release"}}).Schedules; len(got) != 1 || got[0].Version != 2 || got[0].EveryMS != 2000 {
		f.t.Errorf("after declarations of the versions 1 and 2: %+v", got)
	}
	f.pause()
	f.stop()
	kit.CheckOccurrences(f.t, f.jobs(), schedules)
}

// any returns a sidecar that runs.
func (f *fleet) any() *kit.Sidecar { return f.sidecars[slices.Index(f.running, true)] }

// more waits until some jobs are stored, for about two seconds.
func (f *fleet) more(schedules int) {
	testwait.Until(f.t, "schedules store jobs", func() bool { return len(f.jobs()) >= f.stored+schedules })
	f.stored = len(f.jobs())
}

// declare declares what a version of the workers has: it stores a job every so many seconds.
func (f *fleet) declare(version int) {
	f.any().Dial().Must(kit.Msg{"op": "schedule", "queue": "q", "schedule": kit.Msg{
		"name": "release", "every_ms": 1000 * version, "source": "workers", "version": version,
	}})
}

// pause stops all sidecars for some occurrences. After the restart the policy of each schedule decides about those.
func (f *fleet) pause() {
	down := 14 * time.Second // occurrences are missed if the first is 10 s late
	if kit.Soak {
		down = 30 * time.Second
	}
	c := f.any().Dial()
	policies := []string{"one", "all", "skip"}
	for _, missed := range policies {
		c.Must(kit.Msg{"op": "schedule", "queue": "q", "schedule": kit.Msg{"name": missed, "every_ms": 1000, "missed": missed}})
	}
	of := func(name string) (all []time.Time) {
		for _, j := range f.jobs() {
			if of, text, _ := strings.Cut(j, " "); of == name {
				at, err := time.Parse(time.RFC3339, text)
				if err != nil {
					f.t.Fatal(err)
				}
				all = append(all, at)
			}
		}
		slices.SortFunc(all, time.Time.Compare)
		return all
	}
	testwait.Until(f.t, "each policy stores jobs", func() bool { return len(of("one")) > 0 && len(of("all")) > 0 && len(of("skip")) > 0 })
	f.stop()
	before := of("all")
	began := before[len(before)-1]
	testwait.Until(f.t, "occurrences are missed", func() bool { return time.Since(began) > down })
	f.sidecars[0].Start()
	f.running[0] = true
	testwait.Until(f.t, "schedules store jobs after the pause", func() bool {
		return !slices.ContainsFunc(policies, func(p string) bool { all := of(p); return !all[len(all)-1].After(began.Add(down + time.Second)) })
	})
	f.stop()
	within := func(name string) (n int) { // in the first part of the pause, which was over for sure when the sidecar started
		for _, at := range of(name) {
			if at.After(began) && !at.After(began.Add(down-2*time.Second)) {
				n++
			}
		}
		return n
	}
	missed := int((down - 2*time.Second) / time.Second)
	if all, one, skip := within("all"), within("one"), within("skip"); all != missed || one > 1 || skip > 1 { // a job of the other schedules can be a second later than that of "all"
		f.t.Errorf("of %d missed occurrences the policies all, one and skip stored %d, %d and %d", missed, all, one, skip)
	}
}

// stop kills all sidecars.
func (f *fleet) stop() {
	for i := range f.sidecars {
		if f.running[i] {
			f.sidecars[i].Kill()
			f.running[i] = false
		}
	}
}
