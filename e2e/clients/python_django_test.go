package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
	"github.com/qsidecar/qsidecar/e2e/kit/clientlib"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// djangoPackages are Django and its requirements.
var djangoPackages = []string{"Django==6.1.3"}

// TestPythonDjango tests the backend of django.tasks with Django itself and a worker.
func TestPythonDjango(t *testing.T) {
	t.Parallel()
	python, err := pythonenv.Newest(t.Context()) // Django requires a new one
	if err != nil {
		t.Fatal(err)
	}
	version, err := pythonenv.Version(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	django, err := pythonenv.Packages(t.Context(), version, djangoPackages...)
	if err != nil {
		t.Fatal(err)
	}
	s := kit.NewSite(t)
	s.Queues = "  default: {retention: {done: 1h}, max_attempts: 1}\n  mail: {}\n"
	path := []string{django, clientlib.PythonPackage, filepath.Join(clientlib.PythonPackage, "tests")}
	env := []string{
		"PYTHONPATH=" + strings.Join(path, ":"), "DJANGO_SETTINGS_MODULE=django_site", "SITE_FILE=" + s.File(),
	}
	w := clientlib.NewWorker(t, s.Start("a"), env, python, "-m", "qsidecar", "work", "qsidecar.django_tasks:app", "-j", "2")
	w.Start()
	check := exec.Command(python, filepath.Join(clientlib.PythonPackage, "tests", "django_check.py"), t.TempDir())
	check.Env = append(os.Environ(), w.Env...)
	out, err := check.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s\nthe worker's end:", err, out)
	}
	w.Terminate()
	if t.Failed() {
		t.Logf("%s", w.Output)
	} else {
		t.Logf("%s", out)
	}
}
