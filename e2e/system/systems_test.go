package system

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

// TestOtherSystemsCompile checks the types of the program and of Go's client for each system that a release is for. It compiles nothing, which
// would take minutes. A soak run builds the releases.
func TestOtherSystemsCompile(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"linux/arm64", "darwin/amd64", "darwin/arm64"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			checked, err := checkTypes(system, "./cmd/qsidecar", "./clients/go")
			if err != nil {
				t.Error(err)
			}
			if checked < 50 {
				t.Errorf("%d packages of this module were checked, want all that the program imports", checked)
			}
		})
	}
}

// checkTypes checks the types of packages and of all that they import, for another system. It checks the bodies of functions in this module, and
// returns the number of its packages.
func checkTypes(system string, patterns ...string) (checked int, err error) {
	goos, arch, _ := strings.Cut(system, "/")
	list := exec.Command("go", append([]string{"list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module"}, patterns...)...)
	list.Dir, list.Stderr = kit.Path("."), os.Stderr
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	out, err := list.Output()
	if err != nil {
		return 0, err
	}
	known := map[string]*types.Package{"unsafe": types.Unsafe}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath, Dir string
			GoFiles         []string
			ImportMap       map[string]string
			Module          *struct {
				Main      bool
				GoVersion string
			}
		}
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return checked, nil
		} else if err != nil {
			return checked, err
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		files := token.NewFileSet()
		var parsed []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				return checked, err
			}
			parsed = append(parsed, f)
		}
		imports := importer{known, p.ImportMap}
		config := types.Config{Importer: imports, Sizes: types.SizesFor("gc", arch), IgnoreFuncBodies: true}
		if p.Module != nil {
			config.GoVersion = "go" + p.Module.GoVersion
			if p.Module.Main {
				config.IgnoreFuncBodies = false
				checked++
			}
		}
		if known[p.ImportPath], err = config.Check(p.ImportPath, files, parsed, nil); err != nil {
			return checked, err
		}
	}
}

// importer returns packages that were checked before. The standard library imports some under other names.
type importer struct {
	packages map[string]*types.Package
	names    map[string]string
}

func (i importer) Import(path string) (*types.Package, error) {
	if name, ok := i.names[path]; ok {
		path = name
	}
	if p := i.packages[path]; p != nil {
		return p, nil
	}
	return nil, errors.New("go list does not name " + path + " before what imports it")
}
