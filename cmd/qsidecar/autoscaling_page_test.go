package main

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestAutoscalingPage asks a sidecar for what the autoscaler of docs/operations/autoscaling.md asks.
func TestAutoscalingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations/autoscaling.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "---\n")
	var object struct {
		Spec struct {
			Advanced struct {
				ScalingModifiers struct{ Formula string } `yaml:"scalingModifiers"`
			}
			Triggers []struct {
				Name     string
				Metadata struct {
					URL           string
					ValueLocation string `yaml:"valueLocation"`
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	x := startWatching(t, false, "admin: {listen: ':0'}\n")
	at := x.status().Admin
	for range 3 {
		x.must(0, "enqueue", "mail", "1")
	}
	x.claim("mail")
	formula := object.Spec.Advanced.ScalingModifiers.Formula
	for _, trigger := range object.Spec.Triggers {
		u, err := url.Parse(trigger.Metadata.URL)
		if err != nil {
			t.Fatal(err)
		}
		formula = strings.ReplaceAll(formula, trigger.Name, valueAt(t, at, u.RequestURI(), trigger.Metadata.ValueLocation))
	}
	if formula != "2 + 1" {
		t.Errorf("with 2 ready and 1 claimed job the formula is %q", formula)
	}
}

// valueAt returns a number in the JSON document of a page, by its path.
func valueAt(t *testing.T, address, page, path string) string {
	t.Helper()
	code, body, err := get(address, page)
	if err != nil || code != http.StatusOK {
		t.Fatal(code, err)
	}
	var at any
	if err := json.Unmarshal([]byte(body), &at); err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(path, ".") {
		switch v := at.(type) {
		case map[string]any:
			at = v[part]
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(v) {
				t.Fatalf("%s has no %s: %s", page, path, body)
			}
			at = v[i]
		}
	}
	n, ok := at.(float64)
	if !ok {
		t.Fatalf("%s of %s is %v", path, page, at)
	}
	return strconv.FormatFloat(n, 'f', -1, 64)
}
