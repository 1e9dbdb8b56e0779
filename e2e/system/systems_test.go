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

// TestOtherSystemsCompile checks the types of the program and of Go's client for other systems that a release is for. It compiles nothing, which
// would take minutes. No file of this module is for one architecture of darwin, so it checks the types for one, and for the other one that the
// imported packages have files. A soak run builds the releases.
func TestOtherSystemsCompile(t *testing.T) {
	t.Parallel()
	for _, system := range []string{"linux/arm64", "darwin/arm64"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			checked, err := checkTypes(system)
			if err != nil {
				t.Error(err)
			}
			if checked < 50 {
				t.Errorf("%d packages of this module were checked, want all that the program imports", checked)
			}
		})
	}
	if _, err := listPackages("darwin/amd64"); err != nil {
		t.Error(err)
	}
}

// listPackages lists what the program and Go's client import for a system, each package after its own imports.
func listPackages(system string) ([]byte, error) {
	goos, arch, _ := strings.Cut(system, "/")
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,ImportMap,Module", "./cmd/qsidecar", "./clients/go")
	list.Dir, list.Stderr = kit.Path("."), os.Stderr
	list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+arch, "CGO_ENABLED=0")
	return list.Output()
}

// checkTypes checks the types of all packages for another system. It checks the bodies of functions in this module, and returns the number of its
// packages.
func checkTypes(system string) (checked int, err error) {
	out, err := listPackages(system)
	if err != nil {
		return 0, err
	}
	_, arch, _ := strings.Cut(system, "/")
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
