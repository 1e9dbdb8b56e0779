package web

import (
	"os"
	"regexp"
	"testing"

	"github.com/qsidecar/qsidecar/internal/webpath"
)

// TestRoutesAreReserved compares the paths that the admin listener serves with those that a proxy's prefix can't have.
func TestRoutesAreReserved(t *testing.T) {
	route := regexp.MustCompile(`Handle(?:Func)?\("(?:GET |POST )?(/[a-z]+)`)
	found := 0
	for _, file := range []string{"web.go", "../adminapi/handler.go", "../daemon/admin_routes.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range route.FindAllStringSubmatch(string(text), -1) {
			found++
			if !webpath.IsServed(m[1]) {
				t.Errorf("%s serves %s, which package webpath doesn't list", file, m[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("found %d routes", found)
	}
}
