package testwait

import (
	"context"
	"fmt"
	"time"
)

// Poll calls fact until it returns no error, for code without a test, such as the start of a
// server. It returns fact's last error when ctx ends or at the limit.
func Poll(ctx context.Context, fact func(context.Context) error) error {
	return poll(ctx, often, fact)
}

// PollRarely is Poll for a fact that is expensive to check and takes seconds to become true.
func PollRarely(ctx context.Context, fact func(context.Context) error) error {
	return poll(ctx, 200*time.Millisecond, fact)
}

func poll(ctx context.Context, longest time.Duration, fact func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	for began := time.Now(); ; {
		err := fact(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pause(began, longest)):
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // a later attempt would fail for this reason alone
			return fmt.Errorf("not within %v (%s): %w", Limit, EnvLimit, err)
		}
	}
}

// often is the longest pause between two checks of a fact.
const often = 20 * time.Millisecond

// pause is the time between two checks of a fact, `longest` at most. It grows with the time since the first one, because what is slow to become true is checked often
// for nothing, and checks of many tests then take more of the processor than what they wait for.
func pause(began time.Time, longest time.Duration) time.Duration {
	return min(max(2*time.Millisecond, time.Since(began)/16), longest)
}
