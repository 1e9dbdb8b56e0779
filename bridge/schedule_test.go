package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestScheduledJobIsReadyWithinASecond: each occurrence has one job, which a waiting worker gets within a second.
func TestScheduledJobIsReadyWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		c.call(`{"op":"schedule","queue":"q","schedule":{"name":"s","every_ms":2000}}`)
		seen := map[string]bool{}
		for range 20 {
			r := c.call(`{"op":"claim","queue":"q","wait_ms":10000}`)
			if len(r.Jobs) != 1 {
				t.Fatalf("claimed %d jobs", len(r.Jobs))
			}
			text := r.Jobs[0].Headers[backends.OccurrenceHeader]
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				t.Fatal(err)
			}
			if late := time.Since(at); late < 0 || late >= time.Second {
				t.Errorf("the job of %s came %v late", text, late)
			}
			if seen[text] {
				t.Errorf("two jobs of %s", text)
			}
			seen[text] = true
			c.call(`{"op":"ack","lease":%q}`, r.Jobs[0].Lease)
		}
		if r := c.call(`{"op":"claim","queue":"q"}`); len(r.Jobs) != 0 {
			t.Error("an occurrence has two jobs")
		}
	})
}

// TestPausedScheduleStoresNoJob: a schedule stores no jobs for the time of its pause, neither then nor afterwards.
func TestPausedScheduleStoresNoJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, options(memory.New())).dial(t)
		c.call(`{"op":"schedule","queue":"q","schedule":{"name":"s","every_ms":1000}}`)
		c.call(`{"op":"change_schedule","queue":"q","schedule":{"name":"s"},"do":"pause"}`)
		c.call(`{"op":"claim","queue":"q","max":10}`)
		if r := c.call(`{"op":"claim","queue":"q","wait_ms":20000}`); len(r.Jobs) != 0 {
			t.Error("a paused schedule stored a job")
		}
		c.call(`{"op":"change_schedule","queue":"q","schedule":{"name":"s"},"do":"resume"}`)
		if r := c.call(`{"op":"claim","queue":"q","wait_ms":20000}`); len(r.Jobs) != 1 {
			t.Error("a resumed schedule stored no job")
		}
	})
}

// declareIn stores schedules without a sidecar.
func declareIn(t *testing.T, b backends.Scheduler, queue string, names ...string) {
	t.Helper()
	for _, name := range names {
		s := backends.Schedule{Name: name, Queue: queue, Cron: "0" + strings.Repeat(",0", 120) + " 6 * * *", Payload: []byte(strings.Repeat("x", 1000)), Source: strings.Repeat("s", 128)}
		if _, err := b.DeclareSchedule(context.Background(), s, false); err != nil {
			t.Fatal(err)
		}
	}
}

// listed returns the names of all schedules, page by page, and the number of pages.
func (c *client) listed(most int, fields string) (names []string, pages int) {
	c.t.Helper()
	for after := ""; ; pages++ {
		more := ""
		if after != "" {
			more = fmt.Sprintf(`,"after":%q`, after)
		}
		c.send(`{"op":"schedules"%s%s}`, fields, more)
		line, err := c.line()
		if err != nil {
			c.t.Fatal(err)
		}
		var r struct {
			OK        bool
			After     string
			Schedules []struct{ Name, Payload string }
		}
		if err := json.Unmarshal(line, &r); err != nil || !r.OK || len(line)-1 > most {
			c.t.Fatalf("%v: %d bytes: %.200s", err, len(line), line)
		}
		for _, s := range r.Schedules {
			if names = append(names, s.Name); s.Payload != "" {
				c.t.Errorf("the list has the payload of %s", s.Name)
			}
		}
		if after = r.After; after == "" {
			return names, pages + 1
		}
	}
}

// TestSchedulesAreListedByPages: the pages together have each schedule once, in the order of the names, and each fits max_reply.
func TestSchedulesAreListedByPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := memory.New(), newAddress("CCCCCCCCCCC")
		o := options(one)
		o.MaxFrame = 64 << 10
		o.Databases["other"] = Database{Backend: two}
		o.Queues = map[string]Queue{"a": {Database: "main"}, "b": {Database: "other"}, "c": {Database: "main"}}
		o.Sockets = append(o.Sockets, Socket{Path: inMemory + "c.sock", Allow: []Rule{me([]protocol.Op{protocol.OpSchedules}, "c")}})
		var want []string
		for i := range 1000 {
			want = append(want, fmt.Sprintf("%s-%03d", strings.Repeat("n", 100), i))
		}
		declareIn(t, one, "a", want...)
		declareIn(t, two, "b", want[10:20]...) // the same names in another database
		declareIn(t, one, "c", "z1", "z2")
		want = append(want, want[10:20]...)
		want = append(want, "z1", "z2")
		slices.Sort(want)
		s := start(t, o)
		c := s.dial(t)
		most := protocol.NewLimits(o.MaxFrame).MaxReply
		for _, x := range []struct {
			fields string
			pages  int // at least
		}{{`,"max":1000`, 2}, {"", 11}, {`,"max":11`, 90}} {
			if names, pages := c.listed(most, x.fields); !slices.Equal(names, want) || pages < x.pages {
				t.Errorf("%s: %d names on %d pages, want %d names", x.fields, len(names), pages, len(want))
			}
		}
		if names, _ := c.listed(most, `,"queue":"c","max":1`); !slices.Equal(names, []string{"z1", "z2"}) {
			t.Errorf("of a queue: %q", names)
		}
		s.path = inMemory + "c.sock"
		if names, _ := s.dial(t).listed(most, `,"max":1`); !slices.Equal(names, []string{"z1", "z2"}) {
			t.Errorf("with a right to one queue: %q", names)
		}
	})
}
