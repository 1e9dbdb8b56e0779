package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"
)

// report prints the results for people. Its first error stays.
type report struct {
	w   io.Writer
	err error
}

func (r *report) line(format string, args ...any) {
	if _, err := fmt.Fprintf(r.w, format+"\n", args...); r.err == nil {
		r.err = err
	}
}

func (r *report) title(version string, o options) {
	r.line("\n== %s, %d cores, load of the machine before it began: %s", version, runtime.NumCPU(), load())
	if o.fast {
		r.line("   the server syncs nothing: the figures mean nothing")
	}
}

// section starts a part.
func (r *report) section(format string, args ...any) { r.line("\n"+format, args...) }

// head prints the columns of row.
func (r *report) head() {
	r.line("\n%-50s %8s %17s  %15s %15s  %24s  %10s", "", "jobs/s", "", "first request", "ack", "CPU, µs a job", "a job")
	r.line("%-50s %8s %17s  %7s %7s %7s %7s  %8s %8s %6s  %5s %5s", "", "median", "(least … most)", "p50 ms", "p99 ms", "p50 ms", "p99 ms",
		"sidecar", "database", "bench", "stmts", "tx")
}

// row prints the measurements of one kind.
func (r *report) row(name string, all []figures) {
	var rate, sidecar, database, self, statements, transactions []float64
	var first, ack latencies
	known := true
	for _, f := range all {
		n := float64(f.jobs)
		rate = append(rate, f.rate())
		sidecar, database = append(sidecar, micros(f.used.sidecar)/n), append(database, micros(f.used.database)/n)
		self = append(self, micros(f.used.self)/n)
		statements, transactions = append(statements, float64(f.used.statements)/n), append(transactions, float64(f.used.transactions)/n)
		first, ack = append(first, f.first...), append(ack, f.ack...)
		known = known && f.used.known
	}
	asked := fmt.Sprintf("%5s %5s", "-", "-")
	if known {
		asked = fmt.Sprintf("%5.2f %5.2f", median(statements), median(transactions))
	}
	r.line("%-50s %8.0f %17s  %s %s  %8.1f %8.1f %6.1f  %s", name, median(rate),
		fmt.Sprintf("(%.0f … %.0f)", slices.Min(rate), slices.Max(rate)), quantiles(first), quantiles(ack),
		median(sidecar), median(database), median(self), asked)
}

// ratio prints a ratio beside its aim.
func (r *report) ratio(name string, all []float64, aim float64) {
	verdict := "reached"
	if median(all) < aim {
		verdict = "MISSED"
	}
	r.line("%-90s %6.2f  (%.2f … %.2f)  aim ≥ %g: %s", name, median(all), slices.Min(all), slices.Max(all), aim, verdict)
}

// quantiles returns p50 and p99 in milliseconds.
func quantiles(l latencies) string {
	if len(l) == 0 {
		return fmt.Sprintf("%7s %7s", "-", "-")
	}
	return fmt.Sprintf("%7.2f %7.2f", micros(l.at(0.5))/1000, micros(l.at(0.99))/1000)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func median(x []float64) float64 {
	y := slices.Sorted(slices.Values(x))
	if n := len(y); n%2 == 0 {
		return (y[n/2-1] + y[n/2]) / 2
	}
	return y[len(y)/2]
}
