package crash

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/databases"
	"github.com/qsidecar/qsidecar/internal/testserver"
	"github.com/qsidecar/qsidecar/internal/testwait"
)

// TestSchedulesAfterAClockChange sets the server's clock forward by an hour and back, while two sidecars run. Forward, the policies of missed
// occurrences decide. Back, the schedules wait, and no occurrence stores a second job.
func TestSchedulesAfterAClockChange(t *testing.T) {
	databases.OwnMySQL(t)
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		s, p := kit.NewPostgresSite(t)
		s.Start("schema") // setClock replaces a function of it
		db := databases.Owners(t, p.URL)
		c := &clockedSchedules{t: t, site: s, set: func(ahead time.Duration) { setClock(p, ahead) }, jobs: func() []string {
			return db.Texts("SELECT headers->>'qsidecar-schedule' || ' ' || (headers->>'qsidecar-occurrence') FROM qsidecar.qsidecar_jobs")
		}}
		c.run()
	})
	t.Run("MariaDB", func(t *testing.T) { // its process has another clock than the machine
		t.Parallel()
		g, err := testserver.StartGalera(testwait.Context(t), 1, testserver.Options{Durable: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
		})
		if err := g.Nodes[0].Exec(t.Context(), "CREATE DATABASE e2e"); err != nil {
			t.Fatal(err)
		}
		s := kit.NewSite(t)
		s.URL = g.Nodes[0].URL("e2e")
		set := func(ahead time.Duration) {
			if err := g.SetClock(testwait.Context(t), 0, ahead); err != nil {
				t.Fatal(err)
			}
		}
		db := databases.OwnersDB{T: t, DB: (&databases.MySQL{MySQL: g.Nodes[0], Name: "e2e"}).DB(t)}
		c := &clockedSchedules{t: t, site: s, set: set, jobs: func() []string {
			return db.Texts(`SELECT CONCAT(JSON_VALUE(headers, '$."qsidecar-schedule"'), ' ', JSON_VALUE(headers, '$."qsidecar-occurrence"')) FROM qsidecar_jobs`)
		}}
		c.run()
	})
}

// clockedSchedules are sidecars of a server whose clock is set.
type clockedSchedules struct {
	t    *testing.T
	site *kit.Site
	set  func(ahead time.Duration) // relative to the machine's clock
	jobs func() []string           // the name and the occurrence of each job
	c    *kit.Conn
}

const missedEvery = 10 * time.Minute

func (c *clockedSchedules) run() {
	now := time.Now()
	// A minute after an occurrence, so that no other one is reached while the test runs.
	ahead := now.Truncate(missedEvery).Add(missedEvery + time.Minute).Sub(now)
	c.set(ahead)
	c.c = c.site.Start("a").Dial()
	c.site.Start("b")
	for _, missed := range []string{"one", "all", "skip"} {
		c.declare(missed, missedEvery, missed)
	}
	first := now.Truncate(missedEvery).Add(2 * missedEvery) // the next occurrence
	c.wantNext(first)

	c.set(ahead + time.Hour)
	c.wantNext(first.Add(time.Hour))
	var missed []time.Time
	for at := first; at.Before(first.Add(time.Hour)); at = at.Add(missedEvery) {
		missed = append(missed, at)
	}
	c.want("all", missed...)
	c.want("one", missed[len(missed)-1])
	c.want("skip")

	c.set(ahead)
	c.declare("seconds", time.Second, "one")
	testwait.Until(c.t, "a schedule runs by the clock that was set back", func() bool { return len(c.of("seconds")) >= 3 })
	if late := now.Add(ahead + 30*time.Minute); !c.of("seconds")[0].Before(late) {
		c.t.Errorf("the schedule of each second began at %v, want it before %v", c.of("seconds")[0], late)
	}
	c.wantNext(first.Add(time.Hour))
	c.want("all", missed...)
	c.want("one", missed[len(missed)-1])

	before := len(c.of("seconds"))
	c.set(ahead + time.Hour)
	testwait.Until(c.t, "it goes on after the clock was set forward again", func() bool { return len(c.of("seconds")) >= before+3 })
	c.wantNext(first.Add(time.Hour))
	c.want("all", missed...)
	c.want("one", missed[len(missed)-1])
	c.want("skip")
	if all := c.of("seconds"); len(slices.Compact(slices.Clone(all))) != len(all) {
		c.t.Errorf("an occurrence stored two jobs: %v", all)
	}
}

func (c *clockedSchedules) declare(name string, every time.Duration, missed string) {
	c.c.Must(kit.Msg{"op": "schedule", "queue": "q", "schedule": kit.Msg{"name": name, "every_ms": every.Milliseconds(), "missed": missed}})
}

// wantNext waits until the schedules with missed occurrences have their next one at that time.
func (c *clockedSchedules) wantNext(at time.Time) {
	c.t.Helper()
	for _, name := range []string{"one", "all", "skip"} {
		testwait.Until(c.t, "the next occurrence of "+name+" is at "+at.String(), func() bool {
			all := c.c.Must(kit.Msg{"op": "schedules", "schedule": kit.Msg{"name": name}}).Schedules
			return len(all) == 1 && all[0].NextAt == at.UnixMilli()
		})
	}
}

// of are the occurrences of the jobs of a schedule, in order.
func (c *clockedSchedules) of(name string) (all []time.Time) {
	for _, j := range c.jobs() {
		if of, text, _ := strings.Cut(j, " "); of == name {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				c.t.Fatal(err)
			}
			all = append(all, at)
		}
	}
	slices.SortFunc(all, time.Time.Compare)
	return all
}

func (c *clockedSchedules) want(name string, want ...time.Time) {
	c.t.Helper()
	if got := c.of(name); !slices.EqualFunc(got, want, time.Time.Equal) {
		c.t.Errorf("the occurrences of %s are %v, want %v", name, got, want)
	}
}
