package bridge

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestSearchOfAllQueues checks that a search without a queue finds the jobs of all queues that the user may see, by text, error, header and
// key, and continues where it stopped.
func TestSearchOfAllQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(memory.New())
		open := inMemory + "open.sock"
		o.Sockets = append(o.Sockets, Socket{Path: open, Allow: []Rule{me(nil, "a", "b")}})
		s := start(t, o)
		c := s.dial(t)
		ids := map[string]string{}
		for _, q := range []string{"c", "b", "a"} {
			for i := range 3 {
				r := c.call(`{"op":"enqueue","queue":%q,"payload":"needle %d","headers":{"h":"v"},"key":%q}`, q, i, fmt.Sprint("key", i))
				ids[fmt.Sprint(q, i)] = r.Job.ID
			}
			c.call(`{"op":"enqueue","queue":%q,"payload":"hay"}`, q)
		}
		find := func(c *client, fields string) (found []string, after, queue string) {
			t.Helper()
			r := c.call(`{"op":"peek",%s}`, fields)
			for _, j := range r.Jobs {
				found = append(found, j.Queue+" "+j.ID)
			}
			return found, r.After, r.AfterQueue
		}
		all := func(queues string, n int) (want []string) {
			for _, q := range queues {
				for i := range n {
					want = append(want, string(q)+" "+ids[fmt.Sprint(string(q), i)])
				}
			}
			return want
		}
		for _, fields := range []string{`"text":"needle","max":100`, `"headers":{"h":"v"},"max":100`} {
			if got, _, queue := find(c, fields); !slices.Equal(got, all("abc", 3)) || queue != "" {
				t.Errorf("%s: %v, and it goes on in %q; want %v", fields, got, queue, all("abc", 3))
			}
		}
		if got, _, _ := find(c, `"key":"key0"`); !slices.Equal(got, all("abc", 1)) {
			t.Errorf("by key: %v", got)
		}
		var got []string
		more := ""
		for pages := 0; ; pages++ {
			part, after, queue := find(c, `"text":"needle","max":2`+more)
			if got = append(got, part...); after == "" && queue == "" || pages > 20 {
				break
			}
			more = ""
			if queue != "" {
				more += fmt.Sprintf(`,"after_queue":%q`, queue)
			}
			if after != "" {
				more += fmt.Sprintf(`,"after":%q`, after)
			}
		}
		if !slices.Equal(got, all("abc", 3)) {
			t.Errorf("in pages: %v, want %v", got, all("abc", 3))
		}
		j := c.claim1("b")
		c.call(`{"op":"nack","lease":%q,"dead":true,"error":"disk is full"}`, j.Lease)
		if got, _, _ := find(c, `"text":"disk is full","state":"dead"`); len(got) != 1 || !strings.HasPrefix(got[0], "b ") {
			t.Errorf("by error: %v", got)
		}
		s.path = open
		if got, _, _ := find(s.dial(t), `"text":"needle","max":100`); slices.ContainsFunc(got, func(f string) bool { return f[0] == 'c' }) || len(got) != 5 {
			t.Errorf("with a right to a and b: %v", got)
		}
	})
}
