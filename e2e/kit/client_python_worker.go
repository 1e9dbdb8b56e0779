package kit

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/internal/testserver"
)

// PythonPackage is the directory of the client under test.
var PythonPackage = Path("clients/python")

// PythonEnv returns the interpreter of an environment with these requirements. All checkouts share
// environments, so a requirement that is a directory has an absolute path.
func PythonEnv(t *testing.T, requirements ...string) string {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range requirements {
		if filepath.IsAbs(r) {
			if requirements[i], err = filepath.Rel(here, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	python, err := testserver.PythonEnv(t.Context(), "python3", requirements...)
	if err != nil {
		t.Fatal(err)
	}
	return python
}

// PythonWorker runs testdata/worker.py with python -m qsidecar work.
func PythonWorker(t *testing.T, sc *Sidecar, env []string, more ...string) *ClientWorker {
	t.Helper()
	env = append(env, "PYTHONPATH="+Path("e2e/kit/testdata"), "PYTHONDONTWRITEBYTECODE=1")
	argv := []string{PythonEnv(t, PythonPackage), "-m", "qsidecar", "work", "worker:app", "-j", "8"}
	return NewClientWorker(t, sc, env, append(argv, more...)...)
}
