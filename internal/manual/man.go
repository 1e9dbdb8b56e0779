package manual

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Pages returns the manual page of each command, by the name of its file. The version and its date are in their headings.
func Pages(root *cobra.Command, version, date string) map[string]string {
	pages := map[string]string{}
	for _, c := range append(All(root), root) {
		pages[PageName(c)+".1"] = manPage(c, version, date)
	}
	return pages
}

// Shown returns the commands of c that its help lists.
func Shown(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			list = append(list, sub)
		}
	}
	return list
}

// All returns the commands that the help of c and of its commands lists.
func All(c *cobra.Command) (list []*cobra.Command) {
	for _, sub := range Shown(c) {
		list = append(append(list, sub), All(sub)...)
	}
	return list
}

// PageName returns the name of a command's page for `man`.
func PageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// manPage returns the command's manual page in roff.
func manPage(c *cobra.Command, version, date string) string {
	var p page
	p.line(`.TH "%s" 1 "%s" "qsidecar %s" "qsidecar"`, strings.ToUpper(PageName(c)), date, version)
	p.line(".nh\n.ad l")
	p.section("NAME")
	p.line(`%s \- %s`, escape(PageName(c)), escape(c.Short))
	p.section("SYNOPSIS")
	takes := strings.TrimPrefix(c.UseLine(), c.CommandPath())
	if !c.Runnable() {
		takes = " COMMAND …"
	}
	p.line(`\fB%s\fR%s`, escape(c.CommandPath()), escape(takes))
	about, codes, _ := strings.Cut(c.Long, "Exit codes:")
	p.section("DESCRIPTION")
	p.text(about)
	if subs := Shown(c); len(subs) > 0 {
		p.section("COMMANDS")
		for _, sub := range subs {
			p.line(".TP\n\\fB%s\\fR(1)\n%s", escape(PageName(sub)), escape(sub.Short))
		}
		if !c.HasParent() {
			p.line(".TP\n\\fBqsidecar completion\\fR\nWrite the completion of a shell: bash, zsh, fish or powershell")
		}
	}
	p.section("OPTIONS")
	c.InitDefaultHelpFlag()
	c.NonInheritedFlags().VisitAll(p.option)
	c.InheritedFlags().VisitAll(p.option)
	p.section("EXIT STATUS")
	p.text(codes)
	if c.Example != "" {
		p.section("EXAMPLES")
		p.verbatim(c.Example)
	}
	p.section("SEE ALSO")
	if c.HasParent() {
		p.line(`\fB%s\fR(1)`, escape(PageName(c.Root())))
	} else {
		p.line("https://github.com/qsidecar/qsidecar")
	}
	return p.String()
}

// page builds the roff of a manual page.
type page struct{ strings.Builder }

// line adds a line of roff.
func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) section(name string) { p.line(".SH %s", name) }

// text adds a text of the help. Indented lines stay as they are, and the others form
// paragraphs.
func (p *page) text(s string) {
	for i, part := range strings.Split(strings.Trim(s, "\n"), "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		lines := strings.Split(strings.Trim(part, "\n"), "\n")
		from := 0
		for from < len(lines) && !strings.HasPrefix(lines[from], "  ") {
			p.line("%s", escape(strings.TrimSpace(lines[from])))
			from++
		}
		if from < len(lines) {
			p.verbatim(strings.Join(lines[from:], "\n"))
		}
	}
}

// verbatim adds lines that stay as they are.
func (p *page) verbatim(s string) {
	p.line(".nf")
	for line := range strings.SplitSeq(strings.Trim(s, "\n"), "\n") {
		p.line("%s", escape(line))
	}
	p.line(".fi")
}

// option adds a flag with the name of its value and its default.
func (p *page) option(f *pflag.Flag) {
	if f.Hidden {
		return
	}
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	value, usage := pflag.UnquoteUsage(f)
	if value != "" {
		value = ` \fI` + escape(value) + `\fR`
	}
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
	default:
		usage += " (default " + f.DefValue + ")"
	}
	p.line(".TP\n\\fB%s\\fR%s\n%s", escape(name), value, escape(usage))
}

// escape returns a line of text as roff without requests.
func escape(line string) string {
	line = strings.NewReplacer(`\`, `\e`, `-`, `\-`, "`", `\(ga`, `'`, `\(aq`, `^`, `\(ha`, `~`, `\(ti`).Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}
