package main

import (
	"os"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/internal/manual"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestCommandsPage checks that docs/reference/cli.md has the current commands and options.
func TestCommandsPage(t *testing.T) {
	const page = "../../docs/reference/cli.md"
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != manual.Markdown(newHost(t).app(nil, nil, nil, nil).root()) {
		t.Errorf("%s isn't current: run `make reference`", page)
	}
}

// TestErrorsPage checks that docs/reference/errors.md has each code of the protocol with the exit
// code of the commands.
func TestErrorsPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []protocol.Code{
		protocol.CodeBadFrame, protocol.CodeBadRequest, protocol.CodeUnknownOp, protocol.CodeUnknownQueue, protocol.CodeForbidden,
		protocol.CodeTooLarge, protocol.CodeLeaseLost, protocol.CodeUnsupported, protocol.CodeBusy, protocol.CodeDraining,
		protocol.CodeUnavailable, protocol.CodeUnknownOutcome, protocol.CodeInternal,
	} {
		row := "| `" + string(code) + "` | " + string(rune('0'+wireExitCode(code))) + " |"
		if !strings.Contains(string(page), row) {
			t.Errorf("the page lacks the row %q", row)
		}
	}
}
