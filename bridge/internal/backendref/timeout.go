package backendref

import (
	"context"
	"fmt"
	"time"
)

// timeoutError is the error of a query that the database did not answer in time. Status and the log show it.
type timeoutError time.Duration

func (t timeoutError) Error() string {
	return fmt.Sprintf("the database gave no answer within %v: see whether its host hangs, its disk is full, or the network to it is cut", time.Duration(t))
}

// Is makes the error match context.DeadlineExceeded.
func (timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// WithTimeout bounds a query to the database.
func WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, timeoutError(d))
}
