package measure

import "time"

// Usage is the resource usage up to an instant. The difference of two is the usage in between.
type Usage struct {
	At                      time.Time
	Sidecar, Database, Self time.Duration // CPU time, user and system
	Counts
}

// Since returns what was used after v.
func (u Usage) Since(v Usage) Usage {
	// The time of a thread that has ended is rounded to the kernel's ticks, so a short measurement can find less than before.
	cpu := func(now, before time.Duration) time.Duration { return max(0, now-before) }
	return Usage{
		Sidecar: cpu(u.Sidecar, v.Sidecar), Database: cpu(u.Database, v.Database), Self: cpu(u.Self, v.Self),
		Counts: Counts{Known: u.Known && v.Known, Statements: u.Statements - v.Statements, Transactions: u.Transactions - v.Transactions},
	}
}

// RoleEnv makes this program a process that the benchmark starts: "echo SOCKET" is the server of openEcho, and "sqlite FILE" a rival
// that works the table in the file.
const RoleEnv = "QSIDECAR_BENCH_ROLE"
