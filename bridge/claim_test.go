package bridge

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/memory"
)

// TestQueueNamedTwice shows that a claim queries each of its queues once, in the order in which they are first named.
func TestQueueNamedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &faulty{Backend: memory.New()}
		var asked []string
		note := func(b backends.CommitContent, _ backends.Results) error {
			for _, c := range b.Claims {
				for _, p := range c.Queues {
					asked = append(asked, p.Queue)
				}
			}
			return nil
		}
		f.after.Store(&note)
		c := start(t, options(f)).dial(t)
		c.call(`{"op":"enqueue","jobs":[{"queue":"q"},{"queue":"p"}]}`)
		r := c.call(`{"op":"claim","queues":["p","q","p","q"],"max":9}`)
		synctest.Wait()
		if len(r.Jobs) != 2 || !slices.Equal(asked, []string{"p", "q"}) {
			t.Errorf("claimed %d jobs, asked for %q", len(r.Jobs), asked)
		}
	})
}
