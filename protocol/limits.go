package protocol

// Ranges of the wire. No configuration changes them.
const (
	MaxSafeInt      = 1<<53 - 1 // largest integer that a double represents exactly
	MaxList         = 1000      // jobs, leases, ids in one request
	MaxQueueName    = 128       // bytes
	MaxKey          = 255       // bytes
	MaxJobID        = 255       // bytes
	MaxLease        = 512       // bytes
	MaxWorkerName   = 128       // bytes
	MaxRequestID    = 64        // bytes
	MaxHeaders      = 64        // entries of one job
	MaxHeaderSize   = 8 << 10   // bytes of all keys and values of one job
	MaxErrorText    = 4 << 10   // bytes; a longer error of a nack is cut
	MaxProgressData = 4 << 10   // bytes of the data of a progress
	MaxSearchText   = 256       // bytes of the text of a search
	MinLeaseMS      = 1_000
	MaxLeaseMS      = 86_400_000
	MaxWaitMS       = 3_600_000
	MaxDelayMS      = 10 * 366 * 86_400_000 // ten years
	MaxTimeoutMS    = 10 * 366 * 86_400_000
	MaxMaxAttempt   = 32_767
	MaxGroup        = 255 // bytes of a group's name
	MaxGroupLimit   = 100_000
	MaxMaxClaimed   = 100_000   // a cap
	MaxRate         = 1_000_000 // jobs in a second, a minute or an hour
	MaxBurst        = 1_000_000 // of a rate
	MaxWeight       = 1_000     // of a queue in a claim
	MinPriority     = -32_768
	MaxPriority     = 32_767
)

// Defaults and bounds of what a server can configure.
const (
	DefaultMaxFrame = 4 << 20
	MaxMaxFrame     = 64 << 20
	ClaimBytes      = 4 << 20 // at most Limits.ClaimBytes
)

// Limits bounds what one connection can send and receive. Use NewLimits: the zero value rejects
// everything.
type Limits struct {
	MaxFrame   int // bytes of one request frame or line
	MaxPayload int // bytes of one job's payload
	MaxReply   int // bytes of one reply
	ClaimBytes int // payload bytes of one claim's reply, not counting its first job
}

// NewLimits derives the limits from the largest request frame. A payload can be 16 KiB smaller,
// which leaves space for headers, key and names. A reply can be eight times as large: JSON can
// write a payload byte as six, and a claim's reply can carry as many payload bytes as a frame.
func NewLimits(maxFrame int) Limits {
	return Limits{MaxFrame: maxFrame, MaxPayload: maxFrame - 16<<10, MaxReply: 8 * maxFrame, ClaimBytes: min(ClaimBytes, maxFrame)}
}

// MaxRunAt is the last instant of the year 9999 in milliseconds since the epoch. The databases'
// time types end there.
const MaxRunAt = 253_402_300_799_999
