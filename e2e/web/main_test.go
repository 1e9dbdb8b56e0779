package web

import (
	"testing"

	"github.com/qsidecar/qsidecar/e2e/kit"
)

func TestMain(m *testing.M) { kit.Main(m) }
