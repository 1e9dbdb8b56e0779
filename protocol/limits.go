package protocol

// The ranges of the wire, which no configuration changes.
const (
	MaxSafeInt    = 1<<53 - 1 // every integer fits a double
	MaxList       = 1000      // jobs, leases, ids in one request
	MaxQueueName  = 128       // bytes
	MaxKey        = 255       // bytes
	MaxJobID      = 255       // bytes
	MaxLease      = 512       // bytes
	MaxWorkerName = 128       // bytes
	MaxRequestID  = 64        // bytes
	MaxHeaders    = 64        // entries of one job
	MaxHeaderSize = 8 << 10   // bytes of all keys and values of one job
	MaxErrorText  = 4 << 10   // bytes; nack's error is cut there
	MinLeaseMS    = 1_000
	MaxLeaseMS    = 86_400_000
	MaxWaitMS     = 3_600_000
	MaxDelayMS    = 10 * 366 * 86_400_000 // ten years
	MaxTimeoutMS  = 10 * 366 * 86_400_000
	MaxMaxAttempt = 32_767
	MinPriority   = -32_768
	MaxPriority   = 32_767
)

// Defaults of what a server may be configured to.
const (
	DefaultMaxFrame = 4 << 20
	MaxMaxFrame     = 64 << 20
	ClaimBytes      = 4 << 20 // at most Limits.ClaimBytes
)

// Limits bounds what one connection may send. The zero value is not useful: use
// NewLimits.
type Limits struct {
	MaxFrame   int // bytes of one request frame or line
	MaxPayload int // bytes of one job's payload
	MaxReply   int // bytes of one reply
	ClaimBytes int // payload bytes of one claim's answer, beyond its first job
}

// NewLimits derives the limits from the largest request frame: a payload may be
// 16 KiB smaller (room for headers, key and names), a reply eight times as large. JSON may
// write a byte of a payload as six, so that a claim's answer has as many as a frame.
func NewLimits(maxFrame int) Limits {
	return Limits{MaxFrame: maxFrame, MaxPayload: maxFrame - 16<<10, MaxReply: 8 * maxFrame, ClaimBytes: min(ClaimBytes, maxFrame)}
}

// MaxRunAt is the last instant of the year 9999 in milliseconds since the epoch:
// the databases' times end there.
const MaxRunAt = 253_402_300_799_999
