package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// report prints the results for people, and keeps the text of the results file. Its first error stays.
type report struct {
	w      io.Writer
	server string // that is measured
	err    error

	// of the file
	intro, tables string // before and after the ratios
	ratios        []string
	said          strings.Builder // what was printed, but not the intro and the tables
	plot          []byte
}

func (r *report) line(format string, args ...any) {
	text := fmt.Sprintf(format+"\n", args...)
	r.said.WriteString(text)
	r.print(text)
}

func (r *report) print(text string) {
	if _, err := io.WriteString(r.w, text); r.err == nil {
		r.err = err
	}
}

func (r *report) title(version string, o options) {
	r.server = version
	r.line("\n== %s, %d cores, load of the machine before it began: %s", version, runtime.NumCPU(), proc.Load())
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

// bound is an aim of a figure: at least, or at most if that is set.
type bound struct{ least, most float64 }

// ratio prints a figure of each round beside its aim, and keeps it for the file.
func (r *report) ratio(name string, all []float64, aim bound) {
	words, reached := fmt.Sprintf("≥ %g", aim.least), median(all) >= aim.least
	if aim.most > 0 {
		words, reached = fmt.Sprintf("≤ %g", aim.most), median(all) <= aim.most
	}
	verdict := map[bool]string{true: "reached", false: "missed"}[reached]
	figure := fmt.Sprintf("%.3g", median(all))
	if len(all) > 1 {
		figure += fmt.Sprintf(" (%.3g … %.3g)", slices.Min(all), slices.Max(all))
	}
	r.line("%-100s %s, aim %s: %s", name, figure, words, verdict)
	r.ratios = append(r.ratios, fmt.Sprintf("| %s: %s | %s | %s | %s |\n", r.server, name, figure, words, verdict))
}

// unavailable reports an engine that isn't measured.
func (r *report) unavailable(engine string, why error) {
	r.line("\n== %s: %v", engine, why)
	r.ratios = append(r.ratios, fmt.Sprintf("| %s: %v | | | |\n", engine, why))
}

// write writes the file of the results, and the plot beside it.
func (r *report) write(file string) error {
	text := r.intro + "\n## Ratios\n\nOf held transactions there are 10 steps, of memory and connections one measurement. All servers sync each commit.\n\n" +
		"| | median (least … most) | aim | |\n| --- | --- | --- | --- |\n" + strings.Join(r.ratios, "") + r.tables +
		"\n## Output of the other parts\n\n```text\n" + strings.TrimSpace(r.said.String()) + "\n```\n"
	err := os.WriteFile(file, []byte(text), 0o644)
	if r.plot == nil {
		return err
	}
	return errors.Join(err, os.WriteFile(strings.TrimSuffix(file, filepath.Ext(file))+".svg", r.plot, 0o644))
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
