package testrules

import (
	"go/ast"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// receiverFolders are the folders whose receivers are the initials of their types.
var receiverFolders = []string{"backends", "bench", "bridge", "clients/go", "cmd", "deploy", "e2e", "internal", "protocol", "scripts"}

// otherReceivers are the types whose receivers have another name, because methods of theirs have a variable with the initial as its usual name.
var otherReceivers = map[string]string{
	"backends.ObstacleSet":                 "o is an Obstacle",
	"backends/adopted.commitment":          "c is a claim or a change",
	"backends/adopted.leases":              "l is a lease",
	"backends/adopted.subset":              "s is the Store",
	"backends/backendtest.interleaving":    "i is an index",
	"backends/internal/core.ClaimParts":    "c is a claim",
	"backends/internal/core.dueTrail":      "d is what is due",
	"backends/mysql/diagnose.Engine":       "e is an examination",
	"backends/mysql/internal/claim.claims": "c is a claim",
	"backends/postgres.ledger":             "l is a lease",
	"backends/postgres.queueListener":      "q is a queue",
	"backends/postgres.renewals":           "r is a row",
	"backends/postgres.schema":             "s is the Store",
	"backends/postgres.schemas":            "s is a schema",
	"backends/postgres/diagnose.Engine":    "e is an examination",
	"backends/sqlite/diagnose.Engine":      "e is an examination",
	"backends/sqlserver.emulated":          "e is an error",
	"backends/sqlserver.inspection":        "i is an index",
	"backends/sqlserver/diagnose.Engine":   "e is an examination",
	"bridge/internal/dispatch.rotationDB":  "r is a request",
	"bridge/internal/pipeline.counted":     "c is a content of a commit",
	"cmd/qsidecar.durationFlag":            "d is a duration",
	"e2e/adopted.sharedTable":              "s is the sidecar",
	"e2e/adopted.staleCase":                "s is the site",
	"e2e/cluster.replication":              "r is a replica",
	"e2e/cluster.rolling":                  "r is a run",
	"e2e/config.attack":                    "a is the sidecar a",
	"e2e/config.offence":                   "o is an output",
	"e2e/config.reloadWorkers":             "r is a reply",
	"e2e/kit/adopt.Table":                  "t is the test",
	"e2e/network.blackHole":                "b is a buffer",
	"internal/adminapi.sessions":           "s is a session",
	"internal/adminapi.sidecar":            "s is a session",
	"internal/config.size":                 "s is the text",
	"internal/config.stringList":           "s is the text",
	"internal/logging.logHandler":          "l is a level",
	"internal/testserver.Pooler":           "p is the server behind it",
	"internal/traces.export":               "e is an event",
	"internal/web.sidecarsData":            "s is a sidecar",
	"internal/web.tasks":                   "t is a task",
	"internal/worker.persistentRunner":     "p is a process",
	"protocol.message":                     "m is a message's value",
}

// TestReceivers checks that the methods of a type have one receiver, the initial of its name. The receiver of an error can be e.
func TestReceivers(t *testing.T) {
	t.Parallel()
	root, checked, used := filepath.Join("..", ".."), 0, map[string]bool{}
	for _, folder := range receiverFolders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			for _, d := range parsed(t, path).Decls {
				f, ok := d.(*ast.FuncDecl)
				if !ok || f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
					continue
				}
				of, name := typeName(f.Recv.List[0].Type), f.Recv.List[0].Names[0].Name
				checked++
				if name == "_" || name == strings.ToLower(of[:1]) || name == "e" && strings.HasSuffix(of, "Error") {
					continue
				}
				if key := filepath.ToSlash(dir) + "." + of; otherReceivers[key] == "" {
					t.Errorf("%s: the receiver of %s.%s is %s, want %s", path, of, f.Name.Name, name, strings.ToLower(of[:1]))
				} else {
					used[key] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if checked < 1000 {
		t.Errorf("only %d methods", checked)
	}
	for key := range otherReceivers {
		if !used[key] {
			t.Errorf("%s is an exception without a use", key)
		}
	}
}

// typeName returns the name of a receiver's type.
func typeName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return "?"
}
