package main

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// TestPageNamesTheScenarios checks that clients/README.md names each scenario under its reaction,
// and names no other.
func TestPageNamesTheScenarios(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{} // scenario → number of its reaction
	for i, r := range regexp.MustCompile(`(?ms)^\*\*(\d+)\. .*?\n\n`).FindAllStringSubmatch(string(page), -1) {
		if r[1] != fmt.Sprint(i+1) {
			t.Errorf("reaction %s is listed in place of %d", r[1], i+1)
		}
		kit := regexp.MustCompile("Kit: (.*)").FindStringSubmatch(r[0])
		if kit == nil {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(kit[1], -1) {
			named[name[1]] = r[1]
		}
	}
	for _, sc := range scenarios {
		if got := named[sc.name]; got != fmt.Sprint(sc.reaction) {
			t.Errorf("the scenario %s checks reaction %d, but the page lists it under %q", sc.name, sc.reaction, got)
		}
		delete(named, sc.name)
	}
	for name := range named {
		t.Errorf("the page lists an unknown scenario %s", name)
	}
}
