package main

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/doc/comment"
	"go/format"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// protocolTypes are the types of package protocol that the client's calls take and return.
var protocolTypes = []string{"NewJob", "Opt", "EnqueuedJob", "Job", "JobView", "QueueStat", "HelloReply", "Error", "Code"}

// goPage returns the page of the Go client's API.
func goPage(root string) (string, error) {
	client, err := readPackage(root, "clients/go")
	if err != nil {
		return "", err
	}
	wire, err := readPackage(root, "protocol")
	if err != nil {
		return "", err
	}
	wire.Types = slices.DeleteFunc(wire.Types, func(t *doc.Type) bool { return !slices.Contains(protocolTypes, t.Name) })
	for _, t := range wire.Types {
		if t.Name != "Opt" {
			t.Funcs, t.Methods = nil, nil
		}
	}
	var out strings.Builder
	out.WriteString("# Go API\n\n`go doc github.com/qsidecar/qsidecar/clients/go` prints the same. The [README](../../clients/go/README.md) has examples.\n\n")
	g := goWriter{&out, client}
	out.WriteString(g.text(client.Doc, 2))
	g.values(client.Consts)
	g.values(client.Vars)
	for _, f := range client.Funcs {
		g.function("##", f)
	}
	for _, t := range client.Types {
		g.typ(t)
	}
	out.WriteString("## Types of package protocol\n\n")
	for _, t := range wire.Types {
		goWriter{&out, wire}.typ(t)
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

// packageDoc is a package's documentation and the positions of its declarations.
type packageDoc struct {
	*doc.Package
	fset *token.FileSet
}

func readPackage(root, dir string) (packageDoc, error) {
	names, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(dir), "*.go"))
	if err != nil {
		return packageDoc{}, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.ParseComments)
		if err != nil {
			return packageDoc{}, err
		}
		files = append(files, file)
	}
	p, err := doc.NewFromFiles(fset, files, "github.com/qsidecar/qsidecar/"+dir)
	return packageDoc{p, fset}, err
}

type goWriter struct {
	out *strings.Builder
	packageDoc
}

// text returns a comment as Markdown, with its headings at the given level.
func (g goWriter) text(text string, level int) string {
	p := g.Printer()
	p.HeadingLevel = level
	p.HeadingID = func(*comment.Heading) string { return "" }
	p.DocLinkURL = func(*comment.DocLink) string { return "" }
	return string(p.Markdown(g.Parser().Parse(text))) + "\n"
}

func (g goWriter) values(values []*doc.Value) {
	for _, v := range values {
		g.declaration(v.Decl)
		g.out.WriteString(g.text(v.Doc, 4))
	}
}

func (g goWriter) typ(t *doc.Type) {
	name := t.Name
	if g.Name == "protocol" {
		name = "protocol." + name
	}
	fmt.Fprintf(g.out, "## type %s\n\n", name)
	g.declaration(t.Decl)
	g.out.WriteString(g.text(t.Doc, 4))
	g.values(t.Consts)
	g.values(t.Vars)
	for _, f := range slices.Concat(t.Funcs, t.Methods) {
		if !slices.Contains([]string{"Error", "Unwrap", "Is"}, f.Name) {
			g.function("###", f)
		}
	}
}

func (g goWriter) function(heading string, f *doc.Func) {
	name := f.Name
	if f.Recv != "" {
		name = strings.TrimPrefix(f.Recv, "*") + "." + name
	}
	fmt.Fprintf(g.out, "%s func %s\n\n", heading, name)
	f.Decl.Body, f.Decl.Doc = nil, nil
	g.declaration(f.Decl)
	g.out.WriteString(g.text(f.Doc, 4))
}

func (g goWriter) declaration(d ast.Decl) {
	if gen, is := d.(*ast.GenDecl); is {
		gen.Doc = nil
	}
	g.out.WriteString("```go\n")
	if err := format.Node(g.out, g.fset, d); err != nil {
		fmt.Fprint(g.out, err)
	}
	g.out.WriteString("\n```\n\n")
}
