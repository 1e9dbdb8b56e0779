package backendtest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
)

func scheduler(k *kit, b backends.Backend) backends.Scheduler {
	k.Helper()
	s, ok := b.(backends.Scheduler)
	if !ok {
		k.Fatalf("%T isn't a Scheduler", b)
	}
	return s
}

// hasSchedules reports whether the engine keeps schedules: the example of package core doesn't.
func (k *kit) hasSchedules() bool {
	_, err := scheduler(k, k.Backend).Schedules(k.Context(), backends.ScheduleList{Max: 1})
	return !errors.Is(err, errors.ErrUnsupported)
}

// hourly is a schedule of queue "q".
func hourly(name string) backends.Schedule {
	return backends.Schedule{Name: name, Queue: "q", Every: time.Hour, Payload: []byte(name)}
}

func (k *kit) declare(s backends.Schedule) backends.Declared {
	k.Helper()
	d, err := scheduler(k, k.Backend).DeclareSchedule(k.Context(), s, false)
	if err != nil {
		k.Fatalf("declare %s: %v", s.Name, err)
	}
	return d
}

func (k *kit) wantDeclared(s backends.Schedule, want backends.DeclareOutcome) backends.Declared {
	k.Helper()
	d := k.declare(s)
	if d.Outcome != want {
		k.Fatalf("the declaration of %s: %+v, want %s", s.Name, d, want)
	}
	return d
}

// schedule returns a schedule as the database has it.
func (k *kit) schedule(name string) backends.Schedule {
	k.Helper()
	all := k.list(backends.ScheduleList{Name: name, Max: 2})
	i := slices.IndexFunc(all, func(s backends.Schedule) bool { return s.Name == name })
	if i < 0 {
		k.Fatalf("there is no schedule %s", name)
	}
	return all[i]
}

func (k *kit) list(l backends.ScheduleList) []backends.Schedule {
	k.Helper()
	all, err := scheduler(k, k.Backend).Schedules(k.Context(), l)
	if err != nil {
		k.Fatalf("schedules: %v", err)
	}
	return all
}

// reach moves the clock to a time after the next occurrence of a schedule.
func (k *kit) reach(name string, after time.Duration) {
	k.Helper()
	k.AdvanceClock(k.schedule(name).NextAt.Sub(k.databaseTime()) + after)
}

// databaseTime is the database's clock: that of a new job.
func (k *kit) databaseTime() time.Time {
	k.Helper()
	id := k.enqueue(backends.NewJob{Queue: "p", Payload: []byte("clock")})[0]
	v := k.view(id)
	k.operate(backends.Command{Kind: backends.Delete, Queue: "p", IDs: []string{id}}, 1, false)
	return v.EnqueuedAt
}

func (k *kit) fire() backends.FiredSchedules {
	k.Helper()
	r, err := scheduler(k, k.Backend).FireSchedules(k.Context(), nil)
	if err != nil {
		k.Fatalf("fire: %v", err)
	}
	return r
}

// wantFired checks which schedules a call fires, each with its number of jobs.
func (k *kit) wantFired(want ...string) backends.FiredSchedules {
	k.Helper()
	r := k.fire()
	var got []string
	for _, f := range r.Fired {
		got = append(got, fmt.Sprintf("%s %d", f.Name, len(f.Jobs)))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		k.Fatalf("fired %q, want %q", got, want)
	}
	return r
}

// occurrences are the occurrences of the jobs of queue "q", in order.
func (k *kit) occurrences() (all []string) {
	k.Helper()
	for _, v := range k.views(backends.Peek{Queue: "q", State: backends.StateReady, Max: 1000}) {
		all = append(all, v.Headers[backends.OccurrenceHeader])
	}
	slices.Sort(all)
	return all
}

var scheduleTests = map[string]func(*kit){
	"OccurrenceMakesAJob": func(k *kit) {
		s := backends.Schedule{Name: "report", Queue: "q", Cron: "*/10 * * * *", Zone: "Europe/Berlin", Splay: 5 * time.Minute, Payload: []byte("\x00p"),
			Headers: map[string]string{"a": "b"}, Priority: 7, Missed: backends.MissedAll, Overlap: backends.OverlapSkip, Source: "app", Version: 3}
		if d := k.wantDeclared(s, backends.DeclareCreated); d.NextAt.IsZero() || !d.NextAt.Equal(k.schedule("report").NextAt) {
			k.Fatalf("declared: %+v", d)
		}
		if r := k.maintain(backends.Maintenance{}); r.ScheduleDue || r.NextSchedule <= 0 {
			k.Fatalf("before it is due: %+v", r)
		}
		k.wantFired()
		next := k.schedule("report").NextAt
		k.reach("report", 100*time.Millisecond)
		if r := k.maintain(backends.Maintenance{}); !r.ScheduleDue {
			k.Fatalf("a schedule is due: %+v", r)
		}
		if r := k.maintain(backends.Maintenance{Watched: true}); r.ScheduleDue {
			k.Error("a sidecar that isn't a watcher searches for schedules")
		}
		r := k.wantFired("report 1")
		if !slices.Equal(r.Ready, []string{"q"}) || r.More {
			k.Errorf("fired: %+v", r)
		}
		k.wantFired()
		j := k.claimOne()
		nominal := next.Truncate(10 * time.Minute).Format(time.RFC3339)
		want := map[string]string{"a": "b", "qsidecar-schedule": "report", "qsidecar-occurrence": nominal}
		if string(j.Payload) != "\x00p" || j.Priority != 7 || !maps.Equal(j.Headers, want) || j.ID != r.Fired[0].Jobs[0] {
			k.Errorf("the job is %+v, want the headers %v", j, want)
		}
		got := k.schedule("report")
		if !got.NextAt.Equal(next.Add(10*time.Minute)) || got.LastAt.Format(time.RFC3339) != nominal || got.LastJob != j.ID || len(got.Upcoming) != backends.UpcomingTimes || !got.Upcoming[0].Equal(got.NextAt) {
			k.Errorf("the schedule is %+v", got)
		}
		got.NextAt, got.LastAt, got.LastJob, got.Upcoming, got.Change = time.Time{}, time.Time{}, "", nil, nil
		if diff := cmp.Diff(s, got); diff != "" {
			k.Error(diff)
		}
	},
	"JobsHaveTheLimitOfTheirQueue": func(k *kit) {
		if !k.expires() {
			return
		}
		k.declare(hourly("report"))
		k.reach("report", 0)
		s := scheduler(k, k.Backend)
		expiry := func(queue string) backends.Expiry { return minute(queue).Expiry }
		r, err := s.FireSchedules(k.Context(), expiry)
		if err != nil || len(r.Fired) != 1 {
			k.Fatal(r, err)
		}
		id, err := s.ChangeSchedule(k.Context(), backends.ScheduleCommand{Kind: backends.ScheduleRun, Queue: "q", Name: "report", Expiry: expiry})
		if err != nil {
			k.Fatal(err)
		}
		k.AdvanceClock(time.Minute)
		k.expireAll(2)
		k.wantExpired(0, r.Fired[0].Jobs[0], id)
	},
	"OneJobForEachOccurrence": func(k *kit) {
		second := scheduler(k, k.OpenAnother())
		const names = 5
		for i := range names {
			k.declare(hourly(fmt.Sprint(i)))
		}
		for range 4 {
			k.reach("0", 0)
			var wg sync.WaitGroup
			start := make(chan struct{})
			for _, s := range []backends.Scheduler{scheduler(k, k.Backend), second, scheduler(k, k.Backend), second} {
				wg.Go(func() {
					<-start
					if _, err := s.FireSchedules(k.Context(), nil); err != nil {
						if _, locked := errors.AsType[*backends.LockedError](err); !locked { // by the others
							k.Error(err)
						}
					}
				})
			}
			close(start)
			wg.Wait()
			k.fire() // what was locked
		}
		all := k.occurrences()
		if len(all) != 4*names || len(slices.Compact(slices.Clone(all))) != 4 {
			k.Errorf("the occurrences are %q", all)
		}
	},
	"BothOrNeither": func(k *kit) {
		if k.LoseCommit == nil {
			return
		}
		k.declare(hourly("s"))
		for i, before := range []bool{true, false, true, false} {
			k.reach("s", time.Second)
			k.LoseCommit(before)
			_, err := scheduler(k, k.Backend).FireSchedules(k.Context(), nil)
			if err != nil && !errors.Is(err, backends.ErrUnknownOutcome) && !backends.Retryable(err) {
				k.Fatal(err)
			}
			k.fire()
			if all := k.occurrences(); len(all) != i+1 || len(slices.Compact(slices.Clone(all))) != i+1 {
				k.Fatalf("after the lost commit %d: %q", i+1, all)
			}
		}
	},
	"MissedOccurrences": func(k *kit) {
		for _, m := range []backends.MissedPolicy{backends.MissedOne, backends.MissedAll, backends.MissedSkip} {
			s := hourly(string(m))
			s.Missed = m
			k.declare(s)
		}
		k.reach("one", 5*time.Second) // not missed yet
		k.wantFired("all 1", "one 1", "skip 1")
		last := k.schedule("one").NextAt.Add(2 * time.Hour)
		k.reach("one", 2*time.Hour+time.Minute)
		r := k.wantFired("all 3", "one 1", "skip 0")
		for _, f := range r.Fired {
			if want := map[string]int64{"one": 2, "all": 0, "skip": 3}[f.Name]; f.Missed != want {
				k.Errorf("%s missed %d occurrences, want %d", f.Name, f.Missed, want)
			}
		}
		if got := k.schedule("one"); !got.LastAt.Equal(last) || !got.NextAt.Equal(last.Add(time.Hour)) {
			k.Errorf("the schedule is %+v", got)
		}
		k.reach("one", 149*time.Hour+time.Minute)
		for _, f := range k.wantFired("all 100", "one 1", "skip 0").Fired {
			if f.Name == "all" && f.Missed != 50 {
				k.Errorf("%d occurrences stored no job, want 50", f.Missed)
			}
		}
	},
	"ClockSetBack": func(k *kit) {
		k.declare(hourly("s"))
		k.reach("s", time.Second)
		k.wantFired("s 1")
		k.AdvanceClock(-time.Hour)
		k.wantFired()
		k.AdvanceClock(time.Hour)
		k.wantFired()
		k.reach("s", 0)
		k.wantFired("s 1")
		if all := k.occurrences(); len(slices.Compact(slices.Clone(all))) != 2 {
			k.Errorf("the occurrences are %q", all)
		}
	},
	"Overlap": func(k *kit) {
		s := hourly("s")
		s.Overlap, s.Missed = backends.OverlapSkip, backends.MissedAll
		k.declare(s)
		k.reach("s", 0)
		k.wantFired("s 1")
		k.reach("s", 0)
		if r := k.wantFired("s 0"); !r.Fired[0].Overlapped {
			k.Errorf("fired: %+v", r)
		}
		job := k.claimOne()
		k.reach("s", 0)
		k.wantFired("s 0")
		k.write(backends.Ack{Leases: leasesOf(job)})
		k.reach("s", 3*time.Hour)
		k.wantFired("s 1")
		k.reach("s", 0)
		k.wantFired("s 0")
	},
	"Redeclaration": func(k *kit) {
		s := hourly("s")
		k.wantDeclared(s, backends.DeclareCreated)
		k.reach("s", -time.Minute)
		next := k.schedule("s").NextAt
		k.wantDeclared(s, backends.DeclareUnchanged)
		s.Payload, s.Headers = []byte("other"), map[string]string{"x": "y"}
		d := k.wantDeclared(s, backends.DeclareUpdated)
		if want := []backends.FieldChange{{Field: "payload", From: "s", To: "other"}, {Field: "headers", To: "x=y"}}; !slices.Equal(d.Changes, want) {
			k.Errorf("the changes are %+v, want %+v", d.Changes, want)
		}
		if got := k.schedule("s"); !got.NextAt.Equal(next) {
			k.Errorf("another payload moved the next time from %v to %v", next, got.NextAt)
		}
		s.Every = 2 * time.Hour
		k.wantDeclared(s, backends.DeclareUpdated)
		if got := k.schedule("s").NextAt; !got.Equal(got.Truncate(2*time.Hour)) || got.Before(next.Add(-time.Minute)) {
			k.Errorf("the next time is %v", got)
		}
		s.Every = time.Minute
		if d, err := scheduler(k, k.Backend).DeclareSchedule(k.Context(), s, true); err != nil || d.Outcome != backends.DeclareUpdated || len(d.Changes) != 1 {
			k.Errorf("a dry run: %+v, %v", d, err)
		}
		if got := k.schedule("s"); got.Every != 2*time.Hour {
			k.Errorf("a dry run changed it: %+v", got)
		}
	},
	"SourcesAndVersions": func(k *kit) {
		s := hourly("s")
		s.Source, s.Version = "app", 2
		k.wantDeclared(s, backends.DeclareCreated)
		k.wantDeclared(s, backends.DeclareUnchanged)
		lower := s
		lower.Version, lower.Payload = 1, []byte("old")
		k.wantDeclared(lower, backends.DeclareIgnored)
		other, taken := s, s
		other.Payload, taken.Source = []byte("other"), "another app"
		for field, bad := range map[string]backends.Schedule{"version": other, "source": taken} {
			_, err := scheduler(k, k.Backend).DeclareSchedule(k.Context(), bad, false)
			if e, ok := errors.AsType[*backends.ScheduleError](err); !ok || e.Field != field || !strings.Contains(e.Error(), "schedule s") {
				k.Errorf("another %s: %v", field, err)
			}
		}
		other.Version = 3
		k.wantDeclared(other, backends.DeclareUpdated)
		other.Version = 4
		if d := k.wantDeclared(other, backends.DeclareUpdated); !slices.Equal(d.Changes, []backends.FieldChange{{Field: "version", From: "3", To: "4"}}) {
			k.Errorf("a higher version: %+v", d)
		}
		for _, c := range []backends.ScheduleCommand{{Source: "app", Version: 3}, {Source: "another app", Version: 9}} {
			c.Kind, c.Queue, c.Name, c.OfSource = backends.ScheduleDelete, "q", "s", true
			if _, err := scheduler(k, k.Backend).ChangeSchedule(k.Context(), c); !errors.Is(err, backends.ErrNoSuchSchedule) {
				k.Errorf("%+v: %v", c, err)
			}
		}
		k.command(backends.ScheduleCommand{Kind: backends.ScheduleDelete, Queue: "q", Name: "s", OfSource: true, Source: "app", Version: 4})
	},
	"PauseAndResume": func(k *kit) {
		k.declare(hourly("s"))
		k.command(backends.ScheduleCommand{Kind: backends.SchedulePause, Queue: "q", Name: "s"})
		if got := k.schedule("s"); !got.Paused || !got.NextAt.IsZero() {
			k.Errorf("paused: %+v", got)
		}
		s := hourly("s")
		s.Every = 2 * time.Hour
		k.wantDeclared(s, backends.DeclareUpdated)
		k.AdvanceClock(5 * time.Hour)
		k.wantFired()
		k.command(backends.ScheduleCommand{Kind: backends.ScheduleResume, Queue: "q", Name: "s"})
		k.wantFired()
		next := k.schedule("s").NextAt
		k.command(backends.ScheduleCommand{Kind: backends.ScheduleResume, Queue: "q", Name: "s"})
		if got := k.schedule("s"); got.Paused || !got.NextAt.Equal(next) || next.IsZero() {
			k.Errorf("resumed: %+v", got)
		}
		k.reach("s", 0)
		k.wantFired("s 1")
	},
	"RunAndDelete": func(k *kit) {
		k.declare(hourly("s"))
		next := k.schedule("s").NextAt
		id := k.command(backends.ScheduleCommand{Kind: backends.ScheduleRun, Queue: "q", Name: "s"})
		if j := k.claimOne(); j.ID != id || j.Headers[backends.ScheduleHeader] != "s" {
			k.Errorf("the job is %+v, want the id %s", j, id)
		}
		if got := k.schedule("s"); !got.NextAt.Equal(next) || got.LastJob != id {
			k.Errorf("after the run: %+v", got)
		}
		for _, c := range []backends.ScheduleCommand{{Queue: "p", Name: "s"}, {Queue: "q", Name: "x"}} {
			for _, c.Kind = range []backends.ScheduleCommandKind{backends.ScheduleRun, backends.SchedulePause, backends.ScheduleResume, backends.ScheduleDelete} {
				if _, err := scheduler(k, k.Backend).ChangeSchedule(k.Context(), c); !errors.Is(err, backends.ErrNoSuchSchedule) {
					k.Errorf("%+v: %v", c, err)
				}
			}
		}
		k.command(backends.ScheduleCommand{Kind: backends.ScheduleDelete, Queue: "q", Name: "s"})
		k.AdvanceClock(2 * time.Hour)
		k.wantFired()
		if r := k.maintain(backends.Maintenance{}); r.ScheduleDue || r.NextSchedule != 0 {
			k.Errorf("without schedules: %+v", r)
		}
		k.wantDeclared(hourly("s"), backends.DeclareCreated)
		k.wantFired() // a new schedule never fires the past
	},
	"PausedQueue": func(k *kit) {
		k.declare(hourly("s"))
		k.operate(backends.Command{Kind: backends.Pause, Queue: "q"}, 0, false)
		k.reach("s", 0)
		k.wantFired("s 1")
		k.wantNoneReady()
	},
	"RefusedJobs": func(k *kit) {
		s := hourly("p")
		s.Queue = "p"
		k.declare(s)
		k.declare(hourly("q"))
		k.reach("q", 0)
		k.RefuseJobs("p", "not today")
		r, err := scheduler(k, k.Backend).FireSchedules(k.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "not today") || len(r.Fired) != 1 || r.Fired[0].Name != "q" {
			k.Errorf("fired %+v, %v; want q, and the reason of the other", r, err)
		}
		if all := k.occurrences(); len(all) != 1 {
			k.Errorf("the occurrences are %q", all)
		}
	},
	"ManyRefusedJobs": func(k *kit) {
		const n = backends.ScheduleBatch + 1
		for i := range n {
			s := hourly(fmt.Sprintf("p%02d", i))
			s.Queue = "p"
			k.declare(s)
		}
		k.declare(hourly("q"))
		k.reach("q", 0)
		k.RefuseJobs("p", "not today")
		r, err := scheduler(k, k.Backend).FireSchedules(k.Context(), nil)
		if err == nil || !strings.Contains(err.Error(), "not today") || len(r.Fired) != 1 || r.Fired[0].Name != "q" {
			k.Errorf("fired %+v, %v; want q, and the reason of the others", r, err)
		}
	},
	"BadDefinitions": func(k *kit) {
		for field, change := range map[string]func(*backends.Schedule){
			"cron":     func(s *backends.Schedule) { s.Every, s.Cron = 0, "61 * * * *" },
			"every_ms": func(s *backends.Schedule) { s.Every = time.Millisecond },
			"payload":  func(s *backends.Schedule) { s.Payload = make([]byte, backends.MaxSchedulePayload+1) },
		} {
			s := hourly("s")
			change(&s)
			_, err := scheduler(k, k.Backend).DeclareSchedule(k.Context(), s, false)
			if e, ok := errors.AsType[*backends.ScheduleError](err); !ok || e.Field != field {
				k.Errorf("a bad %s: %v", field, err)
			}
		}
		s := hourly("s")
		s.Payload = make([]byte, backends.MaxSchedulePayload)
		k.declare(s)
		if got := k.schedule("s"); len(got.Payload) != backends.MaxSchedulePayload {
			k.Errorf("the payload has %d bytes", len(got.Payload))
		}
	},
	"Lists": func(k *kit) {
		for _, name := range []string{"b", "Z", "a.1", "a", "a-1", "c"} {
			s := hourly(name)
			s.Headers = map[string]string{"h": "v"}
			if name == "c" {
				s.Queue = "p"
			}
			k.declare(s)
		}
		for _, c := range []struct {
			l    backends.ScheduleList
			want string
		}{
			{backends.ScheduleList{Max: 10}, "Z a a-1 a.1 b c"}, {backends.ScheduleList{Max: 2}, "Z a"}, {backends.ScheduleList{After: "a", Max: 2}, "a-1 a.1"},
			{backends.ScheduleList{After: "a.0", Max: 10}, "a.1 b c"}, {backends.ScheduleList{After: "c", Max: 10}, ""}, {backends.ScheduleList{Queue: "p", Max: 10}, "c"},
			{backends.ScheduleList{Queue: "q", After: "a.1", Max: 10}, "b"}, {backends.ScheduleList{Name: "b", Max: 10}, "b"}, {backends.ScheduleList{Queue: "p", Name: "b", Max: 10}, ""},
		} {
			var got []string
			for _, s := range k.list(c.l) {
				got = append(got, s.Name)
				if whole := c.l.Name != ""; (len(s.Payload) > 0) != whole || (len(s.Headers) > 0) != whole || len(s.Upcoming) == 0 {
					k.Errorf("%+v: %+v", c.l, s)
				}
			}
			if strings.Join(got, " ") != c.want {
				k.Errorf("%+v: %q, want %s", c.l, got, c.want)
			}
		}
	},
	"ManySchedules": func(k *kit) {
		const n = 2*backends.ScheduleBatch + 1
		for i := range n {
			k.declare(hourly(fmt.Sprintf("s%03d", i)))
		}
		k.reach("s000", 0)
		fired := 0
		for more := true; more; {
			r := k.fire()
			fired, more = fired+len(r.Fired), r.More
		}
		if all := k.occurrences(); fired != n || len(all) != n {
			k.Errorf("fired %d schedules, %d jobs", fired, len(all))
		}
	},
}

func (k *kit) command(c backends.ScheduleCommand) string {
	k.Helper()
	id, err := scheduler(k, k.Backend).ChangeSchedule(k.Context(), c)
	if err != nil {
		k.Fatalf("%s: %v", c.Kind, err)
	}
	return id
}
