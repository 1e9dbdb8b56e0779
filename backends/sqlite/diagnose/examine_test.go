package diagnose

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBytesText(t *testing.T) {
	t.Parallel()
	got := []string{bytesText(0), bytesText(1023), bytesText(1536), bytesText(300 << 20), bytesText(5 << 40)}
	if diff := cmp.Diff([]string{"0 bytes", "1023 bytes", "1.5 KiB", "300 MiB", "5.0 TiB"}, got); diff != "" {
		t.Error(diff)
	}
}
