package cost

import (
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// Commands calls f for a retry of all dead jobs and for a purge of them, each with a hundredth of b.N jobs and with b.N. f
// creates a database whose queue "q" has n dead jobs and passes it to run, with a function that returns the CPU time that
// its server has used. run reports the costs of the command for each job. These, and the largest heap, must not grow with n.
func Commands(b *testing.B, f func(b *testing.B, n int, run func(s backends.Inspector, serverCPU func() time.Duration))) {
	for name, c := range map[string]backends.Command{
		"retry": {Kind: backends.Retry, Queue: "q", All: true}, "purge": {Kind: backends.Purge, Queue: "q", State: backends.StateDead},
	} {
		for part, divisor := range map[string]int{"hundredth": 100, "all": 1} {
			b.Run(name+"/"+part, func(b *testing.B) {
				n := max(b.N/divisor, 1)
				f(b, n, func(s backends.Inspector, serverCPU func() time.Duration) { command(b, s, c, n, serverCPU) })
			})
		}
	}
}

// command runs a command on n jobs.
func command(b *testing.B, s backends.Inspector, c backends.Command, n int, serverCPU func() time.Duration) {
	transactions, heap := 0, uint64(0)
	c.Progress = func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		transactions, heap = transactions+1, max(heap, m.HeapInuse)
	}
	runtime.GC() // the heap of what filled the table
	server, client := serverCPU(), ProcessCPU(b)
	b.ResetTimer()
	if got, _, err := s.Command(b.Context(), c); err != nil || got != int64(n) {
		b.Fatalf("%d of %d jobs: %v", got, n, err)
	}
	b.StopTimer()
	perJob := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(n) }
	b.ReportMetric(0, "ns/op") // it is for b.N jobs
	b.ReportMetric(float64(n), "jobs")
	b.ReportMetric(perJob(b.Elapsed()), "µs/job")
	b.ReportMetric(perJob(serverCPU()-server), "server-µs/job")
	b.ReportMetric(perJob(ProcessCPU(b)-client), "client-µs/job")
	b.ReportMetric(float64(transactions)/float64(n), "transactions/job")
	b.ReportMetric(float64(heap)/(1<<20), "heap-MiB")
}

// ProcessCPU returns the CPU time that this process has used so far.
func ProcessCPU(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
