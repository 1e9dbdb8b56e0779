package backends

import (
	"fmt"
	"time"
)

// The rules that every engine shares and that do not belong to its SQL.

// Backoff is how long a job waits after its n-th charged attempt: initial
// before the first retry (n ≤ 1), doubling with each, at most limit.
func Backoff(initial, limit time.Duration, n int) time.Duration {
	d := initial
	for ; n > 1 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// TooLarge is the message of a failure with CauseTooLarge: size and limit in bytes.
func TooLarge(size, limit int64) string {
	return fmt.Sprintf("the payload has %d bytes; this sidecar delivers at most %d (raise max_frame, then retry the job)", size, limit)
}
