package rivals

import (
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
)

// quantity is a figure of a cell, in each round.
type quantity func(c *cell) []float64

func worked(c *cell) []float64 { return each(c.got, measure.Figures.Rate) }

func enqueued(c *cell) []float64 { return each(c.put, measure.Figures.Rate) }

func p50(c *cell) []float64 {
	return each(c.got, func(f measure.Figures) float64 { return measure.Micros(f.First.At(0.5)) / 1000 })
}

func p99(c *cell) []float64 {
	return each(c.got, func(f measure.Figures) float64 { return measure.Micros(f.First.At(0.99)) / 1000 })
}

// perJob returns CPU time in µs a job.
func perJob(of func(measure.Usage) time.Duration) quantity {
	return func(c *cell) []float64 {
		return each(c.got, func(f measure.Figures) float64 { return measure.Micros(of(f.Used)) / float64(f.Jobs) })
	}
}

func serverCPU(u measure.Usage) time.Duration { return u.Sidecar }

func each(all []measure.Figures, f func(measure.Figures) float64) (x []float64) {
	for _, one := range all {
		x = append(x, f(one))
	}
	return x
}

// column is a column of a table: a quantity of a workload.
type column struct {
	head, workload string
	of             quantity
}

var rateColumns = []column{{"1", "1", worked}, {"8", "8", worked}, {"32", "32", worked}, {"256", "256", worked}, {"1,000", "1000", worked}}

// tables are all tables.
var tables = []struct {
	title, first string
	columns      []column
}{
	{"Claim and ack, jobs/s by number of workers, 100 B", "workers", rateColumns},
	{"Enqueue from 32 producers and work with 32 workers, jobs/s by payload", "", []column{
		{"enqueue one, 100 B", "32", enqueued}, {"by 100", "256", enqueued}, {"one, 10 KiB", "10KiB", enqueued}, {"one, 1 MiB", "1MiB", enqueued},
		{"work 10 KiB", "10KiB", worked}, {"work 1 MiB", "1MiB", worked}}},
	{"From an enqueue to the start of the job, ms: 32 producers and 32 workers at the same time", "", []column{
		{"p50 at 100 jobs/s", "flow100", p50}, {"p99", "flow100", p99}, {"p50 at 500 jobs/s", "flow500", p50}, {"p99", "flow500", p99},
		{"half of the maximum rate of both, jobs/s", "flow", worked}, {"p50 at that rate", "flow", p50}, {"p99", "flow", p99}}},
	{"CPU of a claim and ack at 32 workers, µs a job", "", []column{
		{"server (sidecar, beanstalkd, echo)", "32", perJob(serverCPU)},
		{"database", "32", perJob(func(u measure.Usage) time.Duration { return u.Database })},
		{"workers' process", "32", perJob(func(u measure.Usage) time.Duration { return u.Self })}}},
}

// peerAims are the ratios to other peers that must be reached.
var peerAims = []struct {
	name, peer, cell string
	of               quantity
	other, with      string
	factor           float64 // of the other
	aim              measure.Bound
}{
	{"32 workers, beside two short transactions on 32 connections", "qsidecar", "32", worked, "two short transactions", "32", 1, measure.Bound{Least: 12}},
	{"32 workers, beside the best one-job SQL on 32 connections", "qsidecar", "32", worked, "best one-job SQL", "32", 1, measure.Bound{Least: 5}},
	{"32 workers, beside River in its own process", "qsidecar", "32", worked, "River", "32", 1, measure.Bound{Least: 2.5}},
	{"1,000 workers, beside River in its own process", "qsidecar", "1000", worked, "River", "1000", 1, measure.Bound{Least: 1.5}},
	{"256 workers, beside graphile-worker with its local queue", "qsidecar", "256", worked, "graphile-worker local", "256", 1, measure.Bound{Least: 1.2}},
	{"32 workers in one process, beside River", workerPeer, "32", worked, "River", "32", 1, measure.Bound{Least: 2.5}},
	{"1,000 workers in one process, beside River", workerPeer, "1000", worked, "River", "1000", 1, measure.Bound{Least: 1.5}},
	{"256 workers in one process, beside graphile-worker with its local queue", workerPeer, "256", worked, "graphile-worker local", "256", 1, measure.Bound{Least: 1.2}},
	{"32 workers, beside beanstalkd with an fsync per write", "qsidecar", "32", worked, "beanstalkd -f0", "32", 1, measure.Bound{Least: 4}},
	{"batches of 100, beside the raw limit", "qsidecar by 100", "32", worked, "raw limit n=1000", "1", 1, measure.Bound{Least: 0.85}},
	{"enqueue one by one, 32 producers, beside 32 connections", "qsidecar", "32", enqueued, "two short transactions", "32", 1, measure.Bound{Least: 4}},
	{"the sidecar's CPU a job, beside two echoed messages on the server's side", "qsidecar", "32", perJob(serverCPU), "socket echo", "32", 2, measure.Bound{Most: 3}},
	{"enqueue-to-claim p99 at half load, beside a bare commit's p99", "qsidecar", "flow", p99, "bare commit", "flow", 1, measure.Bound{Most: 3}},
}

// text returns the results in Markdown, without the ratios, which the file has between the two.
func (y *yard) text(rounds int) (intro, rest string) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Results beside other queues\n\n<!-- `make rivals` writes this file. -->\n\n"+
		"%d interleaved rounds, measured in %v on %s. %s, `fsync` and `synchronous_commit` on. The load of the machine was %s at the end. The tables are medians. "+
		"The ratios count, not the absolute figures.\n\n![jobs/s by workers](RESULTS.svg)\n",
		rounds, time.Since(y.began).Round(time.Second), proc.Machine(), y.Server.Version(), proc.Load())
	if y.Fast {
		b.WriteString("\n**The server syncs nothing: the figures mean nothing.**\n")
	}
	intro = b.String()
	b.Reset()
	for _, t := range tables {
		rows := ""
		for _, p := range peers {
			row, some := "| "+p.name+" |", false
			for _, col := range t.columns {
				figure := ""
				if c := y.find(p.name, col.workload); c != nil && len(col.of(c)) > 0 {
					figure, some = number(measure.Median(col.of(c))), true
				}
				row += " " + figure + " |"
			}
			if some {
				rows += row + "\n"
			}
		}
		if rows != "" {
			fmt.Fprintf(&b, "\n## %s\n\n| %s |", t.title, t.first)
			for _, col := range t.columns {
				b.WriteString(" " + col.head + " |")
			}
			b.WriteString("\n|" + strings.Repeat(" --- |", len(t.columns)+1) + "\n" + rows)
		}
	}
	y.settings(&b)
	return intro, b.String()
}

// ratios prints the ratios beside their aims.
func (y *yard) ratios() {
	for _, x := range peerAims {
		of, to := y.find(x.peer, x.cell), y.find(x.other, x.with)
		if of == nil || to == nil {
			continue
		}
		r, others := x.of(of), x.of(to)
		r = r[:min(len(r), len(others))]
		for i := range r {
			r[i] /= x.factor * others[i]
		}
		y.Out.Ratio(x.name, r, x.aim)
	}
}

// settings writes the peers' versions and settings, and what failed.
func (y *yard) settings(b *strings.Builder) {
	b.WriteString("\n## What was measured\n\n| | version | settings |\n| --- | --- | --- |\n")
	var failed []string
	for i, p := range peers {
		for _, c := range y.cells {
			if c.peer == i && c.why != "" {
				failed = append(failed, "\n**Failed:** "+strings.Join(strings.Fields(c.why), " ")+"\n")
			}
		}
		if c := y.open[i]; c != nil {
			fmt.Fprintf(b, "| %s | %s | %s |\n", p.name, c.version(), p.settings)
		} else if slices.ContainsFunc(y.cells, func(c *cell) bool { return c.peer == i }) {
			fmt.Fprintf(b, "| %s | %v | see below |\n", p.name, measure.ErrUnavailable)
		}
	}
	b.WriteString("| Solid Queue, GoodJob | NOT MEASURED | RubyGems was not reachable where this program was written |\n")
	b.WriteString(strings.Join(failed, ""))
}

// number prints three digits, or whole thousands.
func number(x float64) string {
	if x >= 1000 {
		return measure.Whole(int(math.Round(x)))
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Log10(max(x, 1)))), x)
}

// moduleVersion returns the version of a module in this program.
func moduleVersion(module string) string {
	info, ok := debug.ReadBuildInfo()
	for i := 0; ok && i < len(info.Deps); i++ {
		if info.Deps[i].Path == module {
			return info.Deps[i].Version
		}
	}
	return ""
}

// plot returns an SVG of jobs/s by workers, both logarithmic.
func (y *yard) plot() []byte {
	const width, height, left, top, right, bottom = 900, 520, 60, 30, 200, 50
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="18" font-size="14">claim and ack, jobs/s by number of workers</text>
`, width, height, left)
	px := func(i int) int { return left + i*(width-left-right)/(len(rateColumns)-1) }
	py := func(rate float64) int { // from 10 to 1,000,000
		return height - bottom - int((math.Log10(max(rate, 10))-1)/5*(height-top-bottom))
	}
	for i, c := range rateColumns {
		fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", px(i), height-bottom+20, c.head)
	}
	for rate := 10.0; rate <= 1e6; rate *= 10 {
		fmt.Fprintf(&b, "<path d=\"M%d %dH%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.0f</text>\n",
			left, py(rate), width-right, left-6, py(rate)+4, rate)
	}
	for i, p := range peers {
		var points []string
		colour := fmt.Sprintf("hsl(%d,70%%,40%%)", i*360/len(peers))
		for j, col := range rateColumns {
			if c := y.find(p.name, col.workload); c != nil {
				x, at := px(j), py(measure.Median(worked(c)))
				points = append(points, fmt.Sprintf("%d,%d", x, at))
				fmt.Fprintf(&b, "<circle cx=\"%d\" cy=\"%d\" r=\"3\" fill=\"%s\"/>", x, at, colour)
			}
		}
		if points != nil { // the key is on the right, in the order of the table
			fmt.Fprintf(&b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%d\"/>", strings.Join(points, " "), colour, 1+2*max(0, 1-i))
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" fill=\"%s\">● %s</text>\n", width-right+24, top+20+i*20, colour, p.name)
		}
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
