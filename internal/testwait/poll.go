package testwait

import (
	"context"
	"fmt"
	"time"
)

// Poll calls fact until it returns no error, for code without a test, such as the start of a
// server. It returns fact's last error when ctx ends or at the limit.
func Poll(ctx context.Context, fact func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := fact(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // a later attempt would fail for this reason alone
			return fmt.Errorf("not within %v (%s): %w", Limit, EnvLimit, err)
		}
	}
}
