package clientlib

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// PythonPackage is the directory of the client under test.
var PythonPackage = kit.Path("clients/python")

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
	python, err := pythonenv.New(t.Context(), "python3", requirements...)
	if err != nil {
		t.Fatal(err)
	}
	return python
}

// PythonWorker runs testdata/worker.py with python -m qsidecar work.
func PythonWorker(t *testing.T, sc *kit.Sidecar, env []string, more ...string) *Worker {
	t.Helper()
	return pythonWorker(t, sc, "worker:app", env, more...)
}

// AsyncPythonWorker runs testdata/async_worker.py in the same way.
func AsyncPythonWorker(t *testing.T, sc *kit.Sidecar) *Worker {
	t.Helper()
	return pythonWorker(t, sc, "async_worker:app", nil)
}

func pythonWorker(t *testing.T, sc *kit.Sidecar, app string, env []string, more ...string) *Worker {
	t.Helper()
	env = append(env, "PYTHONPATH="+kit.Path("e2e/kit/clientlib/testdata"))
	argv := []string{PythonEnv(t, PythonPackage), "-m", "qsidecar", "work", app, "-j", "8"}
	return NewWorker(t, sc, env, append(argv, more...)...)
}
