package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// Report prints the results for people, and keeps the text of the results file. Its first error stays.
type Report struct {
	Writer io.Writer
	server string // that is measured
	Err    error

	// of the file
	Intro, Tables string // before and after the ratios
	ratios        []string
	said          strings.Builder // what was printed, but not the intro and the tables
	Plot          []byte
}

// Line prints a line.
func (r *Report) Line(format string, args ...any) {
	text := fmt.Sprintf(format+"\n", args...)
	r.said.WriteString(text)
	r.Print(text)
}

// Print prints a text.
func (r *Report) Print(text string) {
	if _, err := io.WriteString(r.Writer, text); r.Err == nil {
		r.Err = err
	}
}

// Title prints the server and the sizes of an engine's measurements.
func (r *Report) Title(version string, o Options) {
	r.server = version
	r.Line("\n== %s, %d cores, load of the machine before it began: %s", version, runtime.NumCPU(), proc.Load())
	if o.Fast {
		r.Line("   the server syncs nothing: the figures mean nothing")
	}
}

// Section starts a part.
func (r *Report) Section(format string, args ...any) { r.Line("\n"+format, args...) }

// Head prints the columns of row.
func (r *Report) Head() {
	r.Line("\n%-50s %8s %17s  %15s %15s  %24s  %10s", "", "jobs/s", "", "first request", "ack", "CPU, µs a job", "a job")
	r.Line("%-50s %8s %17s  %7s %7s %7s %7s  %8s %8s %6s  %5s %5s", "", "median", "(least … most)", "p50 ms", "p99 ms", "p50 ms", "p99 ms",
		"sidecar", "database", "bench", "stmts", "tx")
}

// Row prints the measurements of one kind.
func (r *Report) Row(name string, all []Figures) {
	var rate, sidecar, database, self, statements, transactions []float64
	var first, ack Latencies
	known := true
	for _, f := range all {
		n := float64(f.Jobs)
		rate = append(rate, f.Rate())
		sidecar, database = append(sidecar, Micros(f.Used.Sidecar)/n), append(database, Micros(f.Used.Database)/n)
		self = append(self, Micros(f.Used.Self)/n)
		statements, transactions = append(statements, float64(f.Used.Statements)/n), append(transactions, float64(f.Used.Transactions)/n)
		first, ack = append(first, f.First...), append(ack, f.ack...)
		known = known && f.Used.Known
	}
	asked := fmt.Sprintf("%5s %5s", "-", "-")
	if known {
		asked = fmt.Sprintf("%5.2f %5.2f", Median(statements), Median(transactions))
	}
	r.Line("%-50s %8.0f %17s  %s %s  %8.1f %8.1f %6.1f  %s", name, Median(rate),
		fmt.Sprintf("(%.0f … %.0f)", slices.Min(rate), slices.Max(rate)), Quantiles(first), Quantiles(ack),
		Median(sidecar), Median(database), Median(self), asked)
}

// Bound is an aim of a figure: at least, or at most if that is set.
type Bound struct{ Least, Most float64 }

// Ratio prints a figure of each round beside its aim, and keeps it for the file.
func (r *Report) Ratio(name string, all []float64, aim Bound) {
	words, reached := fmt.Sprintf("≥ %g", aim.Least), Median(all) >= aim.Least
	if aim.Most > 0 {
		words, reached = fmt.Sprintf("≤ %g", aim.Most), Median(all) <= aim.Most
	}
	verdict := map[bool]string{true: "reached", false: "missed"}[reached]
	figure := fmt.Sprintf("%.3g", Median(all))
	if len(all) > 1 {
		figure += fmt.Sprintf(" (%.3g … %.3g)", slices.Min(all), slices.Max(all))
	}
	r.Line("%-100s %s, aim %s: %s", name, figure, words, verdict)
	r.ratios = append(r.ratios, fmt.Sprintf("| %s: %s | %s | %s | %s |\n", r.server, name, figure, words, verdict))
}

// Unavailable reports an engine that isn't measured.
func (r *Report) Unavailable(engine string, why error) {
	r.Line("\n== %s: %v", engine, why)
	r.ratios = append(r.ratios, fmt.Sprintf("| %s: %v | | | |\n", engine, why))
}

// Write writes the file of the results, and the plot beside it.
func (r *Report) Write(file string) error {
	text := r.Intro + "\n## Ratios\n\nOf held transactions there are 10 steps, of memory and connections one measurement. All servers sync each commit.\n\n" +
		"| | median (least … most) | aim | |\n| --- | --- | --- | --- |\n" + strings.Join(r.ratios, "") + r.Tables +
		"\n## Output of the other parts\n\n```text\n" + strings.TrimSpace(r.said.String()) + "\n```\n"
	err := os.WriteFile(file, []byte(text), 0o644)
	if r.Plot == nil {
		return err
	}
	return errors.Join(err, os.WriteFile(strings.TrimSuffix(file, filepath.Ext(file))+".svg", r.Plot, 0o644))
}

// Quantiles returns p50 and p99 in milliseconds.
func Quantiles(l Latencies) string {
	if len(l) == 0 {
		return fmt.Sprintf("%7s %7s", "-", "-")
	}
	return fmt.Sprintf("%7.2f %7.2f", Micros(l.At(0.5))/1000, Micros(l.At(0.99))/1000)
}

// Micros returns a duration in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// Median returns the middle of the numbers.
func Median(x []float64) float64 {
	y := slices.Sorted(slices.Values(x))
	if n := len(y); n%2 == 0 {
		return (y[n/2-1] + y[n/2]) / 2
	}
	return y[len(y)/2]
}

// Ratios returns the ratios of the rounds.
func Ratios(of, to []Figures) (r []float64) {
	for i := range of {
		r = append(r, of[i].Rate()/to[i].Rate())
	}
	return r
}

// Whole prints a number with commas between thousands.
func Whole(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
